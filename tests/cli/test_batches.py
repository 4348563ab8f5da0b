"""`aoq batches`: files of batches, and what is met in them."""

import io
import json
import tarfile

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from aoq.pipeline.mining.mine import hard_negatives
from tests.cli.conftest import run as invoke

IMAGES, EACH = 40, 2


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    images = rng.normal(size=(5, 8))[np.arange(IMAGES) % 5] + 0.3 * rng.normal(size=(IMAGES, 8))
    captions = np.repeat(images, EACH, axis=0) + 0.3 * rng.normal(size=(IMAGES * EACH, 8))
    hard_negatives(images, captions, np.arange(IMAGES * EACH) // EACH, h=(12, 6)).save("table")
    return lambda *arguments, **options: invoke("batches", *arguments, **options)


@pytest.mark.parametrize("kind", ["mined", "random"])
def test_an_epoch_has_every_pair_once(run, tmp_path, kind):
    given = ("--community", 4) if kind == "mined" else ()
    result = run("table", "out", "--batch-size", 8, "--epochs", 2, "--kind", kind, *given)
    assert result.stdout.startswith("out: 2 epochs of 10 batches\n")
    epochs = [pq.read_table(f"out/epoch-00{epoch}.parquet") for epoch in (0, 1)]
    for epoch in epochs:
        assert epoch.column_names == ["batch", "image_id", "caption_id"]
        assert sorted(epoch["caption_id"].to_pylist()) == list(range(IMAGES * EACH))
        assert (epoch["caption_id"].to_numpy() // EACH == epoch["image_id"].to_numpy()).all()
        assert np.bincount(epoch["batch"]).tolist() == [8] * 10
    assert epochs[0] != epochs[1]
    manifest = json.loads((tmp_path / "out/manifest.json").read_text())
    assert (manifest["kind"], manifest["batch_size"], manifest["format_version"]) == (kind, 8, 1)
    assert sorted(manifest["files"]) == ["epoch-000.parquet", "epoch-001.parquet"]


def test_batches_of_triples_hold_as_many_pairs_as_asked_for(run):
    refused = run("table", "out", "--batch-size", 8, "--kind", "triples", code=1)
    assert "--batch-size 8 does not divide into triples; give a multiple of 3" in refused.stderr
    for given in (("triples", "--ranks", "0:2"), ("random", "--community", 4), ("random", "--view", "view")):
        refused = run("table", "out", "--batch-size", 9, "--kind", *given, code=2)
        assert f"{given[1]} " in refused.stderr
        assert "leave it out" in refused.stderr
    run("table", "out", "--batch-size", 9, "--kind", "triples")
    assert np.bincount(pq.read_table("out/epoch-000.parquet")["batch"]).max() == 9


def test_a_screens_suspects_do_not_meet(run):
    invoke("screen", "table", "view", "--mutual-rank", 2)
    said = json.loads(run("table", "out", "--batch-size", 8, "--view", "view", "--json").stdout)
    assert said["these"]["may_match"] == 0
    assert said["random"]["may_match"] > 0


def test_shards_have_the_samples_in_the_batches_order(run, tmp_path):
    (tmp_path / "pictures").mkdir()
    for row in range(IMAGES):
        Image.new("RGB", (2, 2), (row, 0, 0)).save(tmp_path / f"pictures/{row}.png")
    (tmp_path / "captions.txt").write_text("".join(f"caption {row}\n" for row in range(IMAGES * EACH)))
    given = ["--write-shards", "--image-root", "pictures", "--captions", "captions.txt"]
    run("table", "out", "--batch-size", 8, *given)
    rows = pq.read_table("out/epoch-000.parquet").to_pylist()
    with tarfile.open("out/epoch-000/000000.tar") as shard:
        members = [(member.name, shard.extractfile(member).read()) for member in shard]
    assert len(members) == 3 * len(rows)
    for row, start in zip(rows, range(0, len(members), 3), strict=True):
        (picture, image), (text, caption), (about, said) = members[start : start + 3]
        key = picture.removesuffix(".png")
        assert (text, about) == (f"{key}.txt", f"{key}.json")
        assert caption.decode() == f"caption {row['caption_id']}"
        assert json.loads(said) == row
        assert Image.open(io.BytesIO(image)).getpixel((0, 0)) == (row["image_id"], 0, 0)
