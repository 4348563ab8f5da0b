"""The mining pass: tables that depend on nothing but the embeddings, and that survive interruption."""

import hashlib
import json

import faiss
import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from aoq.pipeline.mining.mine import mine
from aoq.pipeline.search import exact, faiss_flat, scan
from aoq.pipeline.search.backends import BACKENDS
from aoq.pipeline.search.device import Tiling
from aoq.pipeline.search.problem import DIRECTIONS, Problem
from aoq.pipeline.search.units import Folder
from aoq.pipeline.tables.table import read_table
from tests.mining.conftest import by_norm, world_of_pairs
from tests.prepare.conftest import contents

EXACT = [name for name, backend in BACKENDS.items() if backend.is_exact]


@pytest.fixture
def world():
    images, captions, image_of = world_of_pairs(1, dimensions=16)
    return by_norm(images), by_norm(captions), image_of


def run(world, folder, **options):
    about = {"dataset": "d" * 64, "teacher": {"experiment": "t", "model": "vsepp", "weights_sha256": "w"}}
    depths = [options.pop(name, depth) for name, depth in (("h_captions", 12), ("h_images", 5))]
    problem = Problem(*world, *depths, options.pop("memory", 10**6))
    given = {"search": "faiss-flat", "provenance": about, **options}
    mine(problem, work=folder / "shards", output=folder / "table", **given)
    return folder / "table"


def content_hash(folder):
    """Hash the lists as the manifest does."""
    hashes = []
    for direction in DIRECTIONS:
        columns = pq.read_table(folder / f"{direction}.parquet").columns[1:]
        flat = [column.combine_chunks() for column in columns]
        flat[:2] = [column.flatten() for column in flat[:2]]
        digests = [hashlib.sha256(column.to_numpy().tobytes()).digest() for column in flat]
        hashes.append(hashlib.sha256(b"".join(digests)).hexdigest())
    manifest = json.loads((folder / "manifest.json").read_text())
    assert hashes == [manifest["directions"][direction]["sha256"] for direction in DIRECTIONS]
    return hashes


@pytest.fixture
def cut(monkeypatch):
    """Sets how many images and captions a unit, and a tile, has."""

    def into(block, tile_images, tile_captions):
        monkeypatch.setattr(faiss_flat, "ANCHOR_ROWS", block)
        monkeypatch.setattr(exact, "IMAGE_ROWS", tile_images)
        room = Tiling(tile_images, tile_captions, 0, 14.0, 2**18)
        monkeypatch.setattr(scan, "choose_tiling", lambda device, memory, shrink: room)

    return into


def test_equals_official_mining(golden, tmp_path):
    case = golden("aoq_candidates")
    images, captions = case["in/img_embs"].numpy(), case["in/cap_embs"].numpy()
    image_of = np.repeat(np.arange(len(images), dtype=np.int32), len(captions) // len(images))
    i2t, t2i = case["out/i2t"].numpy(), case["out/t2i"].numpy()
    table = read_table(run((images, captions, image_of), tmp_path, h_captions=i2t.shape[1], h_images=t2i.shape[1]))
    np.testing.assert_array_equal(table.i2t.negative_ids, i2t)
    np.testing.assert_array_equal(table.t2i.negative_ids, t2i)


def test_the_files_depend_neither_on_the_backend_nor_on_units_tiles_and_threads(world, tmp_path, cut):
    hashes, before = set(), faiss.omp_get_max_threads()
    for *sizes, memory, threads in ((4096, 1024, 4096, 10**9, 1), (7, 8, 16, 10**6, 2), (9, 11, 17, 10**5, 2)):
        cut(*sizes)
        faiss.omp_set_num_threads(threads)
        torch.set_num_threads(threads)
        for search in EXACT:
            folder = tmp_path / f"{search}-{memory}"
            hashes.add(tuple(content_hash(run(world, folder, search=search, memory=memory))))
    faiss.omp_set_num_threads(before)
    assert len(hashes) == 1


def interrupt(world, folder, at, **options):
    """Mine until `at` units are finished, by default all."""

    def stop(finished, total):
        if finished == (at or total):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(world, folder, progress=stop, **options)
    assert not (folder / "table").exists()


def test_a_table_that_was_not_published_is_written_anew_from_its_units(world, tmp_path, monkeypatch):
    whole = run(world, tmp_path / "whole")
    run(world, tmp_path / "cut")
    (tmp_path / "cut" / "table" / "i2t.parquet").write_bytes(b"damaged")
    monkeypatch.setattr(Folder, "write", None)
    assert contents(run(world, tmp_path / "cut")) == contents(whole)


@pytest.mark.parametrize("change", ["vectors", "pairs", "provenance"])
def test_units_of_another_search_are_made_again(world, tmp_path, caplog, change):
    """With other pairs the vectors are the same, but who is a negative is not."""
    interrupt(world, tmp_path / "cut", 1)
    images, captions, image_of = world
    if change == "vectors":
        images = images.copy()
        images[3] = images[4]
    world = images, captions, image_of[::-1] if change == "pairs" else image_of
    given = {"provenance": {"dataset": "d", "teacher": {"weights_sha256": "x"}}} if change == "provenance" else {}
    whole = content_hash(run(world, tmp_path / "whole", **given))
    assert content_hash(run(world, tmp_path / "cut", **given)) == whole
    assert "is damaged or belongs to another search; making it again" in caplog.text


def test_bad_tables_are_refused(world, tmp_path):
    folder = run(world, tmp_path)
    with pytest.raises(ValueError, match="mined on other training data"):
        read_table(folder, dataset="e" * 64)
    path = folder / "i2t.parquet"
    path.write_bytes(path.read_bytes()[:999])
    with pytest.raises(ValueError, match=r"i2t.parquet is damaged"):
        read_table(folder)
    with pytest.raises(FileNotFoundError, match="not a negative table"):
        read_table(tmp_path)


def test_a_table_of_a_collapsed_teacher_begins_with_a_warning(world, tmp_path, caplog):
    images, captions, image_of = (np.ones_like(side) if side.ndim == 2 else side for side in world)
    folder = run((images, captions, image_of), tmp_path)
    said = "all scores of 100% of the anchors lie within 1e-6: the teacher has collapsed"
    assert caplog.text.count(said) == 2
    assert f"- `i2t`: {said}; exact, 100.00% certified." in (folder / "README.md").read_text()
    assert "collapsed" not in (run(world, tmp_path / "sound") / "README.md").read_text()
