"""The mining pass: tables that depend on nothing but the embeddings, and that survive interruption."""

from __future__ import annotations

import hashlib
import json

import faiss
import numpy as np
import pyarrow.parquet as pq
import pytest

from pipeline.mining import mine as mine_module
from pipeline.mining.mine import mine
from pipeline.mining.table import read_table

IMAGES, EACH = 30, 3


@pytest.fixture
def world():
    rng = np.random.default_rng(1)
    images = rng.normal(size=(IMAGES, 16)).astype(np.float32)
    image_of = np.repeat(np.arange(IMAGES, dtype=np.int32), EACH)
    captions = images[image_of] + rng.normal(size=(IMAGES * EACH, 16)).astype(np.float32)
    captions[40:50] = captions[7]  # duplicate captions of other images
    normalise = lambda rows: (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)  # noqa: E731
    return normalise(images), normalise(captions), image_of


def run(world, folder, **options):
    images, captions, image_of = world
    about = {"dataset": "d" * 64, "teacher": {"experiment": "t", "model": "vsepp", "weights_sha256": "w"}}
    given = {"h_captions": 12, "h_images": 5, "search": "faiss-flat", "provenance": about, **options}
    mine(images, captions, image_of, work=folder / "shards", output=folder / "table", **given)
    return folder / "table"


def content_hash(folder):
    table = read_table(folder)
    digest = hashlib.sha256()
    for lists in (table.i2t, table.t2i):
        for array in (lists.negative_ids, lists.scores, lists.positive_scores):
            digest.update(array.tobytes())
    return digest.hexdigest()


def test_equals_official_mining(golden, tmp_path):
    case = golden("aoq_candidates")
    images, captions = case["in/img_embs"].numpy(), case["in/cap_embs"].numpy()
    image_of = np.repeat(np.arange(len(images), dtype=np.int32), len(captions) // len(images))
    i2t, t2i = case["out/i2t"].numpy(), case["out/t2i"].numpy()
    table = read_table(run((images, captions, image_of), tmp_path, h_captions=i2t.shape[1], h_images=t2i.shape[1]))
    np.testing.assert_array_equal(table.i2t.negative_ids, i2t)
    np.testing.assert_array_equal(table.t2i.negative_ids, t2i)


def test_own_positives_never_appear_and_order_is_canonical(world, tmp_path):
    table = read_table(run(world, tmp_path))
    image_of = world[2]
    for anchor, (ids, scores) in enumerate(zip(table.i2t.negative_ids, table.i2t.scores, strict=True)):
        assert anchor not in image_of[ids]
        order = sorted(zip(-scores, ids, strict=True))
        assert [i for _, i in order] == ids.tolist()
    for anchor, ids in enumerate(table.t2i.negative_ids):
        assert image_of[anchor] not in ids
    worst = (world[0][image_of] * world[1]).sum(axis=1).reshape(IMAGES, EACH).min(axis=1)
    np.testing.assert_allclose(table.i2t.positive_scores, worst, atol=1e-6)


def test_the_table_does_not_depend_on_shards_or_threads(world, tmp_path):
    hashes = set()
    before = faiss.omp_get_max_threads()
    for name, rows, threads in [("a", 4096, 1), ("b", 7, 2), ("c", 1, 2), ("d", 64, 1)]:
        faiss.omp_set_num_threads(threads)
        hashes.add(content_hash(run(world, tmp_path / name, shard_rows=rows)))
    faiss.omp_set_num_threads(before)
    assert len(hashes) == 1


def test_an_interrupted_run_keeps_its_shards(world, tmp_path, monkeypatch):
    whole = content_hash(run(world, tmp_path / "whole", shard_rows=8))
    done = []

    def stop_after(count):
        def report(finished, total):
            done.append(finished)
            if finished == count:
                raise KeyboardInterrupt

        return report

    with pytest.raises(KeyboardInterrupt):
        run(world, tmp_path / "cut", shard_rows=8, progress=stop_after(3))
    assert not (tmp_path / "cut" / "table").exists()
    searched = []
    original = mine_module.exact_negatives
    monkeypatch.setattr(mine_module, "exact_negatives", lambda *a, **k: searched.append(1) or original(*a, **k))
    total = []
    again = run(world, tmp_path / "cut", shard_rows=8, progress=lambda finished, of: total.append(of))
    assert len(searched) == total[0] - 3
    assert content_hash(again) == whole


def test_a_table_whose_clean_up_was_cut_short_is_not_mined_again(world, tmp_path, monkeypatch):
    folder = run(world, tmp_path)
    whole = content_hash(folder)
    (tmp_path / "shards").mkdir()
    monkeypatch.setattr(mine_module, "exact_negatives", None)
    assert content_hash(run(world, tmp_path)) == whole
    assert not (tmp_path / "shards").exists()


def test_a_damaged_shard_is_mined_again(world, tmp_path, caplog):
    whole = content_hash(run(world, tmp_path / "whole", shard_rows=8))

    def stop(finished, total):
        if finished == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(world, tmp_path / "cut", shard_rows=8, progress=stop)
    shard = sorted((tmp_path / "cut" / "shards").glob("*.parquet"))[0]
    content = bytearray(shard.read_bytes())
    content[len(content) // 3] ^= 0xFF
    shard.write_bytes(content)
    assert content_hash(run(world, tmp_path / "cut", shard_rows=8)) == whole
    assert "damaged" in caplog.text


def test_columns_types_and_footer_are_as_promised(world, tmp_path):
    folder = run(world, tmp_path)
    schema = pq.read_schema(folder / "i2t.parquet")
    assert schema.names == ["anchor_id", "negative_ids", "scores", "positive_score"]
    assert [str(field.type) for field in schema] == [
        "int32",
        "fixed_size_list<element: int32>[12]",
        "fixed_size_list<element: float>[12]",
        "float",
    ]
    footer = json.loads(schema.metadata[b"aoq"])
    manifest = json.loads((folder / "manifest.json").read_text())
    for about in (footer, manifest["directions"]["i2t"]):
        assert (about["direction"], about["h"], about["search"], about["guarantee"]) == (
            "i2t",
            12,
            "faiss-flat",
            "exact",
        )
    for about in (footer, manifest):
        assert about["format_version"] == 1
        assert about["teacher"]["weights_sha256"] == "w"


def test_bad_tables_are_refused(world, tmp_path):
    folder = run(world, tmp_path)
    with pytest.raises(ValueError, match="mined on other training data"):
        read_table(folder, dataset="e" * 64)
    content = (folder / "i2t.parquet").read_bytes()
    (folder / "i2t.parquet").write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match=r"i2t.parquet is damaged"):
        read_table(folder)
    flipped = bytearray(content)
    flipped[len(content) // 4] ^= 0x10
    (folder / "i2t.parquet").write_bytes(flipped)
    with pytest.raises(ValueError, match=r"i2t.parquet is damaged"):
        read_table(folder)
    (folder / "i2t.parquet").unlink()
    with pytest.raises(FileNotFoundError, match=r"i2t\.parquet"):
        read_table(folder)
    with pytest.raises(FileNotFoundError, match="no negative table"):
        read_table(tmp_path)
