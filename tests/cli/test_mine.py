"""`aoq mine`: tables of anybody's vectors."""

from __future__ import annotations

import shutil

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pytest
from safetensors.numpy import save_file

from aoq.pipeline.mining.mine import hard_negatives, mine
from aoq.pipeline.search.problem import Problem
from aoq.pipeline.tables.audit import audit
from aoq.pipeline.tables.table import read_table
from tests.cli.conftest import EACH, IMAGES
from tests.cli.conftest import run as aoq
from tests.mining.conftest import by_norm


def vectors():
    return np.load("images.npy"), np.load("captions.npy")


@pytest.fixture
def run(files):
    shutil.rmtree(files / "table")

    def mine_by_command(*arguments, images="images.npy", captions="captions.npy", output="table", code=0):
        depth = () if "--h-captions" in arguments else ("--h-captions", 6, "--h-images", 4)
        return aoq("mine", images, captions, output, *depth, *arguments, code=code)

    return mine_by_command


def hashes(folder):
    return read_table(folder).sha256


def test_it_is_what_the_pipeline_mines(run, files):
    result = run("--per-image", EACH)
    assert result.stdout == (
        "i2t: 15 lists of 6, exact, 100.00% certified\nt2i: 30 lists of 4, exact, 100.00% certified\ntable\n"
    )
    assert result.stderr.endswith("next: aoq inspect table --image 0\n  or: aoq stats table\n")
    assert audit(files / "table") == []
    problem = Problem(*map(by_norm, vectors()), np.repeat(np.arange(IMAGES, dtype=np.int32), EACH), 6, 4)
    mine(problem, search="faiss-flat", provenance={"dataset": "d"}, work=files / "w", output=files / "other")
    assert hashes(files / "table") == hashes(files / "other")
    assert sorted(path.name for path in files.glob(".*")) == []


def test_labels_and_equal_photographs_stand_for_the_pairs_that_they_make(run, files):
    images, captions = np.arange(IMAGES) % 5, np.arange(IMAGES * EACH) % 5
    np.save("image_labels.npy", images + 2**62)  # floats do not tell them apart
    np.save("caption_labels.npy", captions.astype(np.uint64) + 2**62)
    np.save("pairs.npy", np.argwhere(images[:, None] == captions))
    np.save("set.npy", np.argwhere(images[:, None] == images))
    np.save("same.npy", np.where(np.arange(IMAGES) == 7, 3, np.arange(IMAGES)))
    own, of_others = np.arange(IMAGES * EACH) // EACH, {3: 7, 7: 3}
    pairs = [(image, row) for row, one in enumerate(own) for image in {one, of_others.get(int(one), int(one))}]
    np.save("shared.npy", np.array(pairs))
    for output, options in {
        "labels": ("--labels", "image_labels.npy", "--labels", "caption_labels.npy"),
        "pairs": ("--pairs", "pairs.npy"),
        "identity": ("--per-image", EACH, "--identity", "same.npy"),
        "shared": ("--pairs", "shared.npy"),
    }.items():
        run(*options, output=output)
    assert (hashes("labels"), hashes("identity")) == (hashes("pairs"), hashes("shared"))
    for output, options in {"one": ("--labels", "image_labels.npy"), "other": ("--pairs", "set.npy")}.items():
        aoq("mine", "images.npy", output, "--h-captions", 6, *options)
    assert read_table("one").i2t.negative_ids.tolist() == read_table("other").i2t.negative_ids.tolist()


def test_images_that_equal_others_are_counted(run, files, caplog):
    images = vectors()[0]
    images[[5, 9]] = images[3]
    np.save("images.npy", images)
    run("--per-image", EACH)
    assert "IMAGES has 2 rows equal to an earlier one; --identity FILE says which are the same" in caplog.text


def test_vectors_at_an_address_are_copied_and_give_the_same_table(run, files, monkeypatch):
    monkeypatch.setenv("HOME", str(files))
    run("--per-image", EACH)
    save_file({"text": vectors()[1]}, "captions.safetensors")
    given = {"images": f"file://{files}/images.npy", "captions": f"file://{files}/captions.safetensors::text"}
    run("--per-image", EACH, **given, output="copied")
    assert hashes(files / "copied") == hashes(files / "table")
    assert len(list((files / ".cache" / "aoq").glob("*.npy"))) == 1
    refused = run("--per-image", EACH, images=f"file://{files}/none.npy", output="none", code=1)
    assert f"there is no file at file://{files}/none.npy" in refused.stderr
    assert not list(files.glob(".none*"))


def test_cosines_divide_norms_out_however_near_they_are_to_one(run, files):
    for name, vectors_of in zip(("images", "captions"), vectors(), strict=True):
        np.save(f"{name}.npy", by_norm(vectors_of).astype(np.float16))
    dot = ("--metric", "dot")
    for option, output in (((), "table"), ((*dot, "--normalise"), "divided"), (dot, "dot")):
        run("--per-image", EACH, *option, output=output)
    own, asked, as_they_are = (read_table(files / name) for name in ("table", "divided", "dot"))
    assert [one.manifest["teacher"]["normalised"] for one in (own, as_they_are)] == [True, False]
    sides = np.load("images.npy"), np.load("captions.npy")
    for metric, found in (("cosine", own), ("cosine", asked), ("dot", as_they_are)):
        expected = hard_negatives(*sides, np.arange(IMAGES * EACH) // EACH, h=(6, 4), metric=metric)
        assert found.sha256 == expected.sha256


def test_default_lists_are_as_long_as_the_data_allow_and_padded(files):
    """Image 0 has 20 of 30 captions, so 10 are its negatives; every other image has one, and 29 negatives."""
    pairs = np.array([[0, caption] for caption in range(20)] + [[image, 20 + image % 10] for image in range(1, IMAGES)])
    np.save("pairs.npy", pairs)
    mine = ("mine", "--pairs", "pairs.npy", "images.npy", "captions.npy")
    mined = aoq(*mine, "long")
    assert "--h-captions is 29 instead of 300: the data has no more negatives\n" in mined.stderr
    assert "--h-images is 14 instead of 60: the data has no more negatives\n" in mined.stderr
    table = read_table(files / "long")
    assert audit(files / "long") == []
    for row, (ids, scores) in enumerate(zip(table.i2t.negative_ids, table.i2t.scores, strict=True)):
        negatives = {*range(IMAGES * EACH)} - {*pairs[pairs[:, 0] == row, 1].tolist()}
        assert {*ids[ids >= 0].tolist()} == negatives
        assert (np.isnan(scores) == (ids < 0)).all()
    assert "lower it to at most 29" in aoq(*mine, "other", "--h-captions", 40, code=1).stderr


def test_ids_are_kept_beside_the_lists(run, files):
    sides = {}
    for side, matrix in zip(("images", "captions"), vectors(), strict=True):
        sides[side] = [f"{side[0]}-{row}" for row in range(len(matrix))]
        lists = pa.FixedSizeListArray.from_arrays(pa.array(matrix.ravel()), 7)
        feather.write_feather(pa.table({"key": sides[side], "vector": lists}), f"{side}.feather")
    ids = ("--image-ids", "images.feather::key", "--caption-ids", "captions.feather::key")
    run("--per-image", EACH, *ids, images="images.feather::vector", captions="captions.feather")
    run("--per-image", EACH, output="bare")
    assert hashes(files / "table") == hashes(files / "bare")
    table = read_table(files / "table")
    assert table.ids == sides
    assert "ids" not in read_table(files / "bare").manifest
    assert audit(files / "table") == []
    table.save(files / "saved")
    assert read_table(files / "saved").ids == sides
