"""`aoq export` and `aoq import-table` as users run them."""

from __future__ import annotations

import json
import shutil
from hashlib import sha256
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from aoq.pipeline.search.problem import DIRECTIONS
from aoq.pipeline.tables.audit import audit
from aoq.pipeline.tables.exchange.formats import FORMATS
from aoq.pipeline.tables.screens.view import read_view
from aoq.pipeline.tables.table import read_table
from tests.cli.conftest import EACH, IMAGES, JPEG, refusals
from tests.cli.conftest import run as aoq

SHA256 = sha256(JPEG).hexdigest()


@pytest.fixture
def run(files):
    def command(*arguments):
        before = sorted(path.name for path in files.iterdir())
        result = aoq(*arguments)
        if result.exit_code:
            assert sorted(path.name for path in files.iterdir()) == before
        return result

    return command


VECTORS = ("--vectors", "images.npy", "captions.npy")
NAMES = ("--captions", "captions.txt", "--image-ids", "ids.txt")
TEXTS = (*NAMES, "--image-texts", "described.txt")
PICTURES = (*NAMES, "--image-root", "pictures")


def test_a_row_of_both_directions(run, files):
    shown = run("export", "table", "i2t", "--format", "triplet", "--direction", "i2t", *PICTURES)
    assert shown.exit_code == 0, shown.stderr
    assert shown.stdout == f"i2t: {IMAGES * EACH * 6} rows\ni2t: i2t/README.md has the lines that load it\n"
    row = pq.read_table("i2t/train.parquet").to_pylist()[6]
    best = read_table(Path("table")).i2t.negative_ids[0, 0]
    picture = str(files / "pictures" / "0.jpg")
    assert row == {"anchor": picture, "positive": "caption 1", "negative": f"caption {best}"}
    run("export", "table", "t2i", "--format", "triplet", "--direction", "t2i", *TEXTS)
    assert pq.read_table("t2i/train.parquet")["positive"].to_pylist()[:9] == ["picture 0"] * 8 + ["picture 1"]


def test_ids_may_lack_the_ending_of_their_files(run, files):
    shown = run(
        "export", "table", "out", "--format", "ids", "--direction", "t2i", *TEXTS[:2], "--image-root", "pictures"
    )
    assert shown.exit_code == 0, shown.stderr
    images = pq.read_table("out/images.parquet").to_pylist()
    assert images[3] == {"image_id": "3", "image": {"bytes": None, "path": str(files / "pictures" / "3.jpg")}}
    packed = ("--format", "ids", "--direction", "t2i", *PICTURES, "--pack")
    assert run("export", "table", "packed", *packed).exit_code == 0
    images = pq.read_table("packed/images.parquet").to_pylist()
    assert images[3] == {"image_id": "3.jpg", "image": {"bytes": JPEG, "path": "3.jpg"}}


@pytest.fixture
def prepared(files):
    """A dataset folder whose photographs lie elsewhere."""
    (files / "data").mkdir()
    np.save("data/train_ims.npy", np.random.default_rng(0).normal(size=(IMAGES, 2, 3)).astype(np.float32))
    shutil.copy("captions.txt", "data/train_caps.txt")
    paths = [str(files / "pictures" / f"{row}.jpg") for row in range(IMAGES)]
    pq.write_table(pa.table({"path": paths, "sha256": [SHA256] * IMAGES}), "data/train_images.parquet")
    return paths


def test_a_prepared_folder_names_the_pictures(run, prepared):
    made = run("export", "table", "out", "--format", "triplet", "--direction", "i2t", "--data", "data")
    assert made.exit_code == 0, made.output
    anchors = pq.read_table("out/train.parquet").column(0).to_pylist()
    assert {anchor["path"] if isinstance(anchor, dict) else anchor for anchor in anchors} == {*prepared}


def test_a_picture_that_was_changed_is_not_packed(run, files, prepared):
    packed = ("export", "table", "out", "--format", "ids", "--direction", "t2i", "--data", "data", "--pack")
    (files / "pictures" / "3.jpg").write_bytes(JPEG + b"\0")
    found = run(*packed)
    assert found.exit_code == 1
    assert "pictures/3.jpg: was changed since the folder was prepared; prepare the folder again." in found.stderr
    (files / "pictures" / "3.jpg").write_bytes(JPEG)
    assert run(*packed).exit_code == 0


def test_the_help_names_each_format():
    text = aoq("export", "--help").stdout.replace(",", " ").split()
    assert set(FORMATS) <= set(text)


@pytest.mark.parametrize("name", FORMATS)
def test_each_export_has_a_readme(name, run):
    form = FORMATS[name]
    direction = ("--direction", "t2i") if form.directions == "one" else ()
    given = {"text": TEXTS, "id": ("--image-ids", "ids.txt")}.get(form.images, PICTURES)
    scores = VECTORS if form.scores == "always" else ()
    shown = run("export", "table", "out", "--format", name, *direction, *given, *scores)
    assert shown.exit_code == 0, shown.stderr
    text = Path("out/README.md").read_text(encoding="utf-8")
    assert f"format {name}" in text
    assert "out/" in text or '"out"' in text or "out," in text
    assert "$" not in text
    assert len(text.split("```")[1].splitlines()) <= 6


def test_scores_of_positives_come_from_the_table_or_from_vectors(run):
    given = ("--format", "flagembedding", "--num-negatives", 2, "--scores", *TEXTS)
    refused = run("export", "table", "out", *given, "--direction", "i2t")
    assert "an anchor has up to 2 positives, and the table keeps only the lowest score" in refused.stderr
    assert run("export", "table", "t2i", *given, "--direction", "t2i").exit_code == 0
    assert run("export", "table", "i2t", *given, "--direction", "i2t", *VECTORS).exit_code == 0
    i2t, t2i = (list(map(json.loads, Path(one, "train.jsonl").read_text().splitlines())) for one in DIRECTIONS)
    assert [score for line in i2t for score in line["pos_scores"]] == [line["pos_scores"][0] for line in t2i]
    other = run("export", "table", "out", *given, "--direction", "i2t", "--vectors", "images.npy", "other.npy")
    assert "other.npy does not exist" in other.stderr
    np.save("other.npy", np.load("captions.npy")[::-1])
    other = run("export", "table", "out", *given, "--direction", "i2t", "--vectors", "images.npy", "other.npy")
    assert "give the vectors that the table was mined from" in other.stderr


def test_official_lists_there_and_back_are_the_same_table(run, files):
    assert (
        run("export", "table", "f30k", "--format", "aoq").stdout
        == "i2t: 15 rows\nt2i: 30 rows\nf30k: f30k/README.md has the lines that load it\n"
    )
    lists = ("import-table", "f30k/i2t_f30k.npy")
    assert run(*lists, "back", "--per-image", EACH, *VECTORS, "--normalise").exit_code == 0
    hashes = [
        [read_table(files / name).manifest["directions"][direction]["sha256"] for direction in DIRECTIONS]
        for name in ("table", "back")
    ]
    assert hashes[0] == hashes[1]
    assert audit(files / "back") == []
    assert run(*lists, "bare", "--per-image", EACH).stdout == (
        "i2t: 15 lists of 6, no scores\nt2i: 30 lists of 4, no scores\n"
    )
    refused = run("export", "bare", "out", "--format", "trec")
    assert "bare was imported without scores" in refused.stderr


def test_a_run_may_lack_queries_and_hold_own_positives(run, files):
    (files / "i2t.trec").write_text("2 Q0 4 1 0.9 x\n2 Q0 1 2 0.8 x\n0 Q0 5 1 0.5 x\n")
    (files / "t2i.trec").write_text("5 Q0 0 1 0.5 x\n")
    shown = run("import-table", "i2t.trec", "back", "--per-image", 2)
    assert shown.stdout == (
        "i2t: 3 lists of 2, the source's scores; left out: 1 own positive; without a negative: 1 anchor\n"
        "t2i: 6 lists of 1, the source's scores; without a negative: 5 anchors\n"
    )
    assert read_table(files / "back").i2t.negative_ids.tolist() == [[5, -1], [-1, -1], [1, -1]]
    assert audit(files / "back") == []


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("0 Q0 1 1 0.5\n", "i2t.trec:1: 5 fields where a TREC run has 6"),
        ("0 Q0 1 1 0.5 x\n\n", "i2t.trec:2: 0 fields"),
        ("0 Q0 1 1 high x\n", "i2t.trec:1: the score 'high' is not a finite number"),
        ("0 Q0 1 1 nan x\n", "i2t.trec:1: the score 'nan' is not a finite number"),
        ("0 Q0 1 1 1e300 x\n", "is not a finite number, or too large for float32"),
        ("0 Q0 999999999 1 1 x\n", "name image 0 and caption 999999999, and have 2 lists"),
        ("a Q0 1 1 0.5 x\n", "i2t.trec:1: 'a' is no row number; give --image-ids"),
        ("0 Q0 2 1 3 x\n1 Q0 2 1 3 x\n0 Q0 3 2 1 x\n", "i2t.trec:3: this query has lines further up too"),
        ("0 Q0 2 1 3 x\n0 Q0 2 1 3 x\n1 Q0 0 1 3 x\n", "i2t.trec: row 0 lists a candidate twice"),
        ("", "i2t.trec holds no line"),
    ],
)
def test_runs_that_are_none_are_refused(run, files, lines, message):
    (files / "i2t.trec").write_text(lines)
    (files / "t2i.trec").write_text("3 Q0 0 1 0.5 x\n")
    result = run("import-table", "i2t.trec", "back", "--per-image", 2)
    assert result.exit_code == 1
    assert message in result.stderr


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((IMAGES, 3)), "i2t_x.npy holds float64 of shape (15, 3); official lists are integers"),
        (np.zeros(IMAGES, np.int32), "i2t_x.npy holds int32 of shape (15,)"),
        (np.full((IMAGES, 1), IMAGES * EACH), "i2t_x.npy: row 0 lists 30, and there are candidates 0 to 29"),
        (np.zeros((IMAGES + 1, 1), np.int32), "--per-image 2 makes 32 captions of 16 images, and there are 30"),
        (np.array([[None]]), "i2t_x.npy is damaged or not a .npy file of numbers (it holds Python objects)"),
    ],
)
def test_arrays_that_are_no_lists_are_refused(run, array, message):
    np.save("i2t_x.npy", array)
    np.save("t2i_x.npy", np.zeros((IMAGES * EACH, 1), np.int32))
    result = run("import-table", "i2t_x.npy", "back", "--per-image", EACH)
    assert result.exit_code == 1
    assert message in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    refusals(
        """
--format csv :: there is no format 'csv'; formats are triplet, n-tuple,
--format triplet :: say whose lists: --direction i2t (of images) or t2i (of captions)
--format aoq --direction i2t :: aoq has both directions
--format tevatron --direction i2t --scores :: tevatron has no place for positives' scores
--format triplet --direction i2t $VECTORS :: ask for them with --scores
--format triplet --direction i2t :: triplet has the captions' texts, and none are given
--format triplet --direction i2t --captions ids.txt --image-texts described.txt :: 15 captions are given for
--format trec --image-ids captions.txt :: 30 image ids are given for
--format trec --image-ids same.txt :: images 3 and 4 both have the id 'x'
--format n-tuple --direction t2i --num-negatives 5 $TEXTS :: 5 negatives are asked for, and the t2i lists of table have
--format triplet --direction i2t --data d $TEXTS :: leave out --texts and --image-ids
--format trec --data d --image-ids ids.txt --caption-root pictures :: leave out --image-ids and --caption-root
""",
        TEXTS=TEXTS,
        VECTORS=VECTORS,
    ),
)
def test_exports_that_cannot_be_made_are_refused(run, files, arguments, message):
    (files / "same.txt").write_text("".join(f"{'x' if row in (3, 4) else row}\n" for row in range(IMAGES)))
    result = run("export", "table", "out", *arguments)
    assert result.exit_code != 0
    assert message in result.stderr


WAYS = ("--direction", "t2i")


@pytest.mark.parametrize(
    ("arguments", "message"),
    refusals(
        """
--format triplet $WAYS $NAMES :: triplet has the images' pictures, and none are given; give --image-
--format ms-swift $WAYS $NAMES :: its id (or --image-texts FILE, a text for each image).
--format pylate $WAYS $NAMES :: pylate is read as text alone, and an image's id is none; give --im
--format pylate $WAYS $PICTURES :: has no place for pictures; leave out --image-root, or choose triplet
--format trec --image-root pictures :: trec has ids alone, and has no place for pictures
--format aoq --image-texts described.txt :: aoq has no place for a text of an image
--format triplet $WAYS $PICTURES --image-texts described.txt :: give --image-root or --image-texts, not both
--format triplet $WAYS $PICTURES --pack :: --pack puts the pictures of --image-root into
--format ids $WAYS $TEXTS --pack :: an export of ids, tevatron, colpali, nemo; leave it out
--format colpali --direction i2t $PICTURES :: colpali reads its queries as text, and i2t has images
--format ids $WAYS --captions captions.txt --image-root . :: 15 of 15 images have no file below ., the first is '0'; --i
--format triplet $WAYS $NAMES --image-root bare :: 0.jpg.part does not end like an image
--format ids $WAYS $NAMES --image-texts captions.txt :: 30 texts of images are given for
""",
        TEXTS=TEXTS,
        PICTURES=PICTURES,
        NAMES=NAMES,
        WAYS=WAYS,
    ),
)
def test_no_id_goes_for_a_text(run, files, arguments, message):
    shutil.copytree("pictures", "bare")
    if "bare" in arguments:
        for picture in (files / "bare").iterdir():
            picture.rename(f"{picture}.part")
        (files / "ids.txt").write_text("".join(f"{row}.jpg.part\n" for row in range(IMAGES)))
    result = run("export", "table", "out", *arguments)
    assert result.exit_code == 1
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_places_and_tables_that_do_not_do_are_refused(run, files):
    given = ("--format", "triplet", "--direction", "t2i", *TEXTS)
    assert "captions.txt is there already" in run("export", "table", "captions.txt", *given).stderr
    assert "is no folder to write to" in run("export", "table", "nowhere/out", *given).stderr
    assert "is neither an experiment nor a table's folder" in run("export", "nowhere", "out", *given).stderr
    assert "x.npy is no file of lists" in run("import-table", "x.npy", "out", "--unpaired").stderr
    assert "i2t.npy is no file" in run("import-table", "i2t.npy", "out", "--unpaired").stderr
    ways = "--pairs FILE, --per-image K, --data FOLDER or --unpaired"
    assert f"give the true pairs: {ways}" in run("import-table", "i2t.npy", "out").stderr
    mined = ("--normalise", "--unpaired", "--h-captions", 2, "--h-images", 2)
    assert run("mine", "images.npy", "captions.npy", "unpaired", *mined).exit_code == 0
    assert "no caption belongs to any image" in run("export", "unpaired", "out", *given).stderr
    nobody = pa.table({"caption_id": pa.array([], pa.int32()), "image_id": pa.array([], pa.int32())})
    pq.write_table(nobody, files / "table" / "positives.parquet")
    assert "does not hold the pairs whose sha256" in run("export", "table", "out", *given).stderr
    (files / "table" / "positives.parquet").unlink()
    assert "positives.parquet does not exist" in run("export", "table", "out", *given).stderr


def test_what_a_view_flags_is_left_out(run):
    assert run("screen", "table", "view", "--range-min", 1, "--mutual-rank", 3).exit_code == 0
    table = read_table(Path("table"))
    view = read_view(Path("view"), table.manifest)
    given = ("--format", "triplet", "--direction", "i2t", "--view", "view", *TEXTS)
    assert run("export", "table", "left", *given).exit_code == 0
    found = {(row["anchor"], row["negative"]) for row in pq.read_table("left/train.parquet").to_pylist()}
    anchors, places = np.nonzero(view.i2t.flags == 0)
    left = zip(anchors, table.i2t.negative_ids[anchors, places], strict=True)
    assert found == {(f"picture {anchor}", f"caption {caption}") for anchor, caption in left}
    assert 0 < len(found) < IMAGES * 5
