"""`aoq mine`: tables of anybody's vectors."""

from __future__ import annotations

import json
import re
from hashlib import sha256
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import save_file

from aoq.pipeline.digests import canonical_json
from aoq.pipeline.mining.hard_negatives import hard_negatives
from aoq.pipeline.mining.mine import mine
from aoq.pipeline.search import exact
from aoq.pipeline.search.problem import DIRECTIONS, Problem
from aoq.pipeline.tables.audit import audit
from aoq.pipeline.tables.table import read_table

IMAGES, EACH = 20, 2


def vectors():
    rng = np.random.default_rng(0)
    images, captions = rng.normal(size=(IMAGES, 7)), rng.normal(size=(IMAGES * EACH, 7))
    unit = lambda rows: (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)  # noqa: E731
    return unit(images), unit(captions)


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    images, captions = vectors()
    np.save("images.npy", images)
    np.save("captions.npy", captions)
    return tmp_path


@pytest.fixture
def run(aoq, files):
    def mine_by_command(*arguments, images="images.npy", captions="captions.npy", output="table"):
        depth = () if "--h-captions" in arguments else ("--h-captions", 6, "--h-images", 4)
        return aoq("mine", images, captions, output, *depth, *arguments, root=None)

    return mine_by_command


def hashes(folder):
    return [read_table(folder).manifest["directions"][direction]["sha256"] for direction in DIRECTIONS]


def test_it_is_what_the_pipeline_mines(run, files):
    result = run("--per-image", EACH)
    assert result.exit_code == 0
    assert result.stdout == (
        "i2t: 20 lists of 6, exact, 100.00% certified\nt2i: 40 lists of 4, exact, 100.00% certified\ntable\n"
    )
    assert result.stderr.endswith("next: aoq inspect table --image 0\n  or: aoq stats table\n")
    assert audit(files / "table") == []
    problem = Problem(*vectors(), np.repeat(np.arange(IMAGES, dtype=np.int32), EACH), 6, 4)
    mine(problem, search="faiss-flat", provenance={"dataset": "d"}, work=files / "w", output=files / "other")
    assert hashes(files / "table") == hashes(files / "other")
    assert sorted(path.name for path in files.glob(".*")) == []


def test_every_format_and_pairing_gives_the_same_table(run, files):
    images, captions = vectors()
    run("--per-image", EACH)
    np.save("pairs.npy", np.repeat(np.arange(IMAGES), EACH))
    save_file({"images": images, "captions": captions, "other": captions[0]}, "both.safetensors")
    lists = pa.FixedSizeListArray.from_arrays(pa.array(images.ravel()), 7)
    columns = {"id": [str(row) for row in range(IMAGES)], "vector": lists}
    pq.write_table(pa.table(columns), "images.parquet", row_group_size=7)
    pq.write_table(pa.table({"a": captions.tolist(), "b": captions.astype(np.float64).tolist()}), "captions.parquet")
    for number, given in enumerate(
        [
            {"images": "both.safetensors::images", "captions": "both.safetensors::captions"},
            {"images": "images.parquet", "captions": "captions.parquet::b"},
        ]
    ):
        assert run("--pairs", "pairs.npy", **given, output=f"table{number}").exit_code == 0
        assert hashes(files / f"table{number}") == hashes(files / "table")


def test_vectors_at_an_address_are_copied_and_give_the_same_table(run, files, monkeypatch):
    monkeypatch.setenv("HOME", str(files))
    run("--per-image", EACH)
    save_file({"text": vectors()[1]}, "captions.safetensors")
    given = {"images": f"file://{files}/images.npy", "captions": f"file://{files}/captions.safetensors::text"}
    assert run("--per-image", EACH, **given, output="copied").exit_code == 0
    assert hashes(files / "copied") == hashes(files / "table")
    assert len(list((files / ".cache" / "aoq").glob("*.npy"))) == 1
    refused = run("--per-image", EACH, images=f"file://{files}/none.npy", output="none")
    assert (refused.exit_code, f"there is no file at file://{files}/none.npy" in refused.stderr) == (1, True)
    assert not list(files.glob(".none*"))


def test_a_column_of_the_hub_is_no_output(aoq, files):
    result = aoq("mine", "images.npy", "hf:some/set::clip", "--per-image", EACH, root=None)
    assert result.exit_code == 2
    assert "OUTPUT is missing after hf:some/set::clip" in result.stderr


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_cosines_divide_norms_out_however_near_they_are_to_one(run, aoq, files, dtype):
    for name, vectors_of in zip(("images", "captions"), vectors(), strict=True):
        np.save(f"{name}.npy", vectors_of.astype(dtype))
    dot = ("--metric", "dot")
    for option, output in (((), "table"), ((*dot, "--normalise"), "divided"), (dot, "dot")):
        result = run("--per-image", EACH, *option, output=output)
        assert result.exit_code == 0, result.stderr
    own, asked, as_they_are = (read_table(files / name) for name in ("table", "divided", "dot"))
    sides = np.load("images.npy"), np.load("captions.npy")[as_they_are.i2t.negative_ids]
    np.testing.assert_allclose(as_they_are.i2t.scores, np.einsum("id,ihd->ih", *sides, dtype=np.float64), rtol=1e-6)
    assert as_they_are.manifest["teacher"]["normalised"] is False
    np.testing.assert_array_equal(own.i2t.negative_ids, asked.i2t.negative_ids)
    np.testing.assert_array_equal(own.i2t.scores, asked.i2t.scores)
    in_memory = hard_negatives(
        *map(np.load, ("images.npy", "captions.npy")), np.arange(IMAGES * EACH) // EACH, h=(6, 4)
    )
    assert in_memory.sha256 == own.sha256
    assert own.manifest["teacher"]["normalised"] is True
    (files / "images.txt").write_text("an image\n" * IMAGES)
    (files / "captions.txt").write_text("a caption\n" * IMAGES * EACH)
    texts = ("--image-texts", "images.txt", "--texts", "captions.txt")
    scored = ("--format", "labeled-list", "--direction", "i2t", "--scores", "--vectors", "images.npy", "captions.npy")
    exported = aoq("export", "table", "out", *scored, *texts, root=None)
    assert exported.exit_code == 0, exported.stderr  # which refuses vectors that do not give the table's scores again


def test_without_pairs_everything_may_be_a_negative(run, files):
    assert run("--unpaired", "--h-captions", IMAGES * EACH, "--h-images", IMAGES).exit_code == 0
    table = read_table(files / "table")
    assert all(sorted(ids) == list(range(IMAGES * EACH)) for ids in table.i2t.negative_ids.tolist())
    assert np.isnan(table.t2i.positive_score).all()
    assert audit(files / "table") == []


@pytest.fixture
def large(monkeypatch):
    """Lets no job count as small, which a crash may lose."""
    monkeypatch.setattr(exact, "SMALL", 0)


def test_an_interrupted_run_goes_on(run, files, monkeypatch, large):
    from aoq.pipeline.mining import mine as module

    run("--per-image", EACH, output="whole")
    write = module.write_table
    monkeypatch.setattr(module, "write_table", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    cut = run("--per-image", EACH)
    assert cut.exit_code == 1
    assert "disk full" in cut.stderr
    assert not (files / "table").exists()
    shards = {path: path.stat().st_mtime_ns for path in (files / ".table.work" / "shards").iterdir()}
    assert shards
    monkeypatch.setattr(module, "write_table", write)
    seen = {}
    keep = module.shutil.rmtree
    monkeypatch.setattr(
        module.shutil,
        "rmtree",
        lambda path, *a, **k: (seen.update({p: p.stat().st_mtime_ns for p in path.glob("*")}), keep(path, *a, **k)),
    )
    assert run("--per-image", EACH).exit_code == 0
    assert {path: seen[path] for path in shards} == shards
    assert hashes(files / "table") == hashes(files / "whole")


def test_what_was_begun_for_other_pairs_is_not_used(run, files):
    """The vectors are the same, but who is a negative is not."""
    np.save("pairs.npy", np.repeat(np.arange(IMAGES), EACH)[::-1])
    refused = run("--pairs", "pairs.npy", "--search", "faiss:IVF8,Flat|nprobe=1", "--recall-floor", 1)
    assert "mining.recall_floor is 100.0%" in refused.stderr
    assert any((files / ".table.work" / "shards").iterdir())  # a lower floor would go on with these
    np.save("pairs.npy", np.repeat(np.arange(IMAGES), EACH))
    mined = run("--pairs", "pairs.npy", "--search", "faiss:IVF8,Flat|nprobe=1", "--recall-floor", 0.01)
    assert mined.exit_code == 0
    kept = re.findall(r"its index is kept for other depths and pairs, until `aoq gc --delete`: (.*)", mined.stdout)
    assert {*map(Path, kept)} == {*(files / "artifacts" / "index").glob("[!.]*")}
    assert audit(files / "table") == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give the true pairs"),
        (("--per-image", "2", "--unpaired"), "give the true pairs"),
        (("--per-image", "3"), "--per-image 3 makes 60 captions of 20 images, and there are 40"),
        (
            ("--per-image", "2", "--h-captions", "39"),
            "--h-captions is 39, and there are at most 38 negatives in a list",
        ),
        (("--pairs", "images.npy"), "float32 of shape (20, 7); it needs integers, the row of each"),
        (("--per-image", "2", "--search", "best"), "there is no search 'best'"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(run, files, arguments, message):
    result = run(*arguments)
    assert result.exit_code != 0
    assert message in result.stderr
    assert not list(files.glob("*table*"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: np.where(np.arange(20)[:, None] == 4, np.nan, rows), "row 4 of images.npy is not finite"),
        (lambda rows: np.where(np.arange(20)[:, None] == 4, 0, rows), "row 4 of images.npy is zero"),
        (lambda rows: rows[:, :5], "images have 5 dimensions and captions 7"),
        (lambda rows: rows[:0], "images.npy is empty: 0 vectors of 7 dimensions"),
        (lambda rows: rows[0], "images.npy holds float32 of shape (7,); a row of floats"),
        (lambda rows: np.arange(6).reshape(2, 3), "images.npy holds int64 of shape (2, 3); a row of floats"),
    ],
)
def test_vectors_that_cannot_be_mined_are_refused(run, files, change, message):
    images = change(vectors()[0])
    np.save(
        "images.npy", (images / np.linalg.norm(images, axis=1, keepdims=True)) if images.shape == (20, 5) else images
    )
    result = run("--per-image", EACH, "--metric", "cosine")
    assert result.exit_code == 1
    assert message in result.stderr
    assert not list(files.glob("*table*"))


def test_places_and_files_that_do_not_do_are_refused(run, files):
    assert "nowhere.npy does not exist" in run("--per-image", EACH, images="nowhere.npy").stderr
    (files / "table").mkdir()
    assert "is there already" in run("--per-image", EACH).stderr
    assert "is no folder to write to" in run("--per-image", EACH, output="nowhere/table").stderr


def test_default_lists_are_as_long_as_the_data_allow_and_padded(aoq, files):
    """Image 0 has 30 of 40 captions, so 10 are its negatives; every other image has one, and 39 negatives."""
    pairs = np.array([[0, caption] for caption in range(30)] + [[image, 30 + image % 10] for image in range(1, IMAGES)])
    np.save("pairs.npy", pairs)
    mine = ("mine", "--pairs", "pairs.npy", "images.npy", "captions.npy")
    mined = aoq(*mine, "table", root=None)
    assert mined.exit_code == 0, mined.stderr
    assert "--h-captions is 39 instead of 300: the data has no more negatives\n" in mined.stderr
    assert "--h-images is 19 instead of 60: the data has no more negatives\n" in mined.stderr
    table = read_table(files / "table")
    assert audit(files / "table") == []
    for row, (ids, scores) in enumerate(zip(table.i2t.negative_ids, table.i2t.scores, strict=True)):
        negatives = {*range(IMAGES * EACH)} - {*pairs[pairs[:, 0] == row, 1].tolist()}
        assert {*ids[ids >= 0].tolist()} == negatives
        assert (np.isnan(scores) == (ids < 0)).all()
    assert "lower it to at most 39" in aoq(*mine, "other", "--h-captions", 40, root=None).stderr


@pytest.mark.parametrize("row", [2**32 + 5, 2**32 - 1, 2**31, -2, IMAGES])
def test_rows_of_images_do_not_wrap(run, files, row):
    pairs = np.repeat(np.arange(IMAGES), EACH)
    pairs[3] = row
    np.save("pairs.npy", pairs)
    assert f"caption 3 is paired with image {row}" in run("--pairs", "pairs.npy").stderr
    assert not list(files.glob("*table*"))


def test_vectors_in_the_order_of_fortran_or_of_other_bytes_are_taken(run, files):
    run("--per-image", EACH)
    np.save("images.npy", np.asfortranarray(vectors()[0]))
    np.save("captions.npy", vectors()[1].astype(">f4"))
    assert run("--per-image", EACH, output="other").exit_code == 0
    assert hashes(files / "other") == hashes(files / "table")


@pytest.mark.parametrize("parameters", ["nprobe=-1", "nprobe=99999999999", "nprobe=nan", "nprobe", "nprobe=1,ht=-1"])
def test_parameters_of_an_index_are_counts(run, parameters):
    pytest.importorskip("faiss")
    result = run("--per-image", EACH, "--search", f"faiss:IVF4,Flat|{parameters}")
    assert result.exit_code == 1
    assert "parameters are NAME=N, with N from 0 to" in result.stderr


@pytest.mark.parametrize("factor", [1e19, 3e37, 1e-20])
def test_products_beyond_float32_are_refused_before_the_search(run, files, factor):
    np.save("images.npy", vectors()[0] * np.float32(factor))
    result = run("--per-image", EACH, "--metric", "dot")
    assert result.exit_code == 1
    assert "the largest norm of the images is" in result.stderr
    assert "divide all images by a common factor" in result.stderr


NAMED = ("--image-ids", "images.feather::key", "--caption-ids", "captions.feather::key")


@pytest.fixture
def named(run, files):
    """A table of vectors with ids, and the ids of both sides."""
    sides = {}
    for side, matrix in zip(("images", "captions"), vectors(), strict=True):
        sides[side] = [f"{side[0]}-{row}" for row in range(len(matrix))]
        lists = pa.FixedSizeListArray.from_arrays(pa.array(matrix.ravel()), 7)
        feather.write_feather(pa.table({"key": sides[side], "vector": lists}), f"{side}.feather")
    found = run("--per-image", EACH, *NAMED, images="images.feather::vector", captions="captions.feather")
    assert found.exit_code == 0, found.stderr
    return sides


def test_ids_are_kept_beside_the_lists(run, files, named):
    run("--per-image", EACH, output="bare")
    assert hashes(files / "table") == hashes(files / "bare")
    table = read_table(files / "table")
    assert table.ids == named
    assert "ids" not in read_table(files / "bare").manifest
    assert audit(files / "table") == []
    table.save(files / "saved")
    assert read_table(files / "saved").ids == named


def test_exports_and_what_is_published_name_items_by_their_ids(aoq, files, named):
    assert aoq("export", "table", "run", "--format", "trec", root=None).exit_code == 0
    lists = read_table(files / "table").i2t.negative_ids
    expected = [[f"i-{row}", f"c-{lists[row, place]}"] for row in range(IMAGES) for place in range(6)]
    assert [line.split()[::2][:2] for line in (files / "run" / "i2t.trec").read_text().splitlines()] == expected
    assert aoq("publish", "table", "out", root=None).exit_code == 0
    assert read_table(files / "out").ids == named
    assert pq.read_table("out/captions.parquet")["caption_id"].to_pylist() == named["captions"]


def test_ids_are_those_of_the_manifest(files, named):
    pq.write_table(pa.table({"image_id": named["images"][::-1]}), files / "table" / "images.parquet")
    for read in (read_table, audit):
        with pytest.raises(ValueError, match=r"images\.parquet does not hold the ids whose sha256"):
            read(files / "table")


def say_ids(table, side, ids):
    """Let the manifest say that these are the ids of a side."""
    manifest = json.loads((table / "manifest.json").read_text())
    manifest.setdefault("ids", {})[side] = sha256(canonical_json(ids).encode()).hexdigest()
    (table / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (["a", "b"], rf"images\.parquet has 2 ids, 2 of them different, and the table has {IMAGES} rows"),
        (["a"] * IMAGES, rf"images\.parquet has {IMAGES} ids, 1 of them different"),
    ],
)
def test_ids_that_are_not_one_a_row_are_refused_whatever_the_manifest_says(files, named, ids, message):
    pq.write_table(pa.table({"image_id": ids}), files / "table" / "images.parquet")
    say_ids(files / "table", "images", ids)
    for read in (read_table, audit):
        with pytest.raises(ValueError, match=message):
            read(files / "table")


def test_one_set_has_no_ids_of_captions(aoq, files, named):
    mined = aoq("mine", "images.feather::vector", "one", "--unpaired", "--h-captions", 3, root=None)
    assert mined.exit_code == 0, mined.stderr
    say_ids(files / "one", "captions", ["a"])
    with pytest.raises(ValueError, match=r"has ids of \['captions'\], and the table's sides are \['images'\]"):
        read_table(files / "one")


def test_ids_that_repeat_are_refused_before_anything_is_mined(run, files):
    pq.write_table(pa.table({"key": ["a"] * IMAGES, "vector": vectors()[0].tolist()}), "images.parquet")
    found = run("--per-image", EACH, "--image-ids", "images.parquet::key", images="images.parquet::vector")
    assert found.exit_code == 1
    assert f"images 0 and {IMAGES - 1} both have the id 'a'; give each image its own" in found.stderr
    assert not (files / "table").exists()
    assert sorted(path.name for path in files.glob(".*")) == []
