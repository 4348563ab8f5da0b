"""`aoq export`, `import-table` and `publish`, and README's commands for your own vectors, as users run them."""

import json
import shutil
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from aoq.pipeline.mining.mine import hard_negatives
from aoq.pipeline.search.problem import DIRECTIONS
from aoq.pipeline.tables.audit import audit
from aoq.pipeline.tables.exchange.formats import FORMATS
from aoq.pipeline.tables.screens.view import read_view
from aoq.pipeline.tables.table import read_table
from tests.cli.conftest import EACH, IMAGES, JPEG, PICTURES, TEXTS, TINY, VECTORS
from tests.cli.conftest import run as aoq

SHA256 = sha256(JPEG).hexdigest()


def test_a_row_of_both_directions(files):
    shown = aoq("export", "table", "i2t", "--format", "triplet", "--direction", "i2t", *PICTURES)
    assert shown.stdout == f"i2t: {IMAGES * EACH * 6} rows\ni2t: i2t/README.md has the lines that load it\n"
    row = pq.read_table("i2t/train.parquet").to_pylist()[6]
    best = read_table(Path("table")).i2t.negative_ids[0, 0]
    picture = str(files / "pictures" / "0.jpg")
    assert row == {"anchor": picture, "positive": "caption 1", "negative": f"caption {best}"}
    aoq("export", "table", "t2i", "--format", "triplet", "--direction", "t2i", *TEXTS)
    assert pq.read_table("t2i/train.parquet")["positive"].to_pylist()[:9] == ["picture 0"] * 8 + ["picture 1"]


def test_a_prepared_folder_names_its_pictures_wherever_they_lie_unless_they_were_changed(files):
    (files / "data").mkdir()
    np.save("data/train_ims.npy", np.random.default_rng(0).normal(size=(IMAGES, 2, 3)).astype(np.float32))
    shutil.copy("captions.txt", "data/train_caps.txt")
    paths = [str(files / "pictures" / f"{row}.jpg") for row in range(IMAGES)]
    pq.write_table(pa.table({"path": paths, "sha256": [SHA256] * IMAGES}), "data/train_images.parquet")
    aoq("export", "table", "out", "--format", "triplet", "--direction", "i2t", "--data", "data")
    anchors = pq.read_table("out/train.parquet").column(0).to_pylist()
    assert {anchor["path"] if isinstance(anchor, dict) else anchor for anchor in anchors} == {*paths}
    packed = ("export", "table", "packed", "--format", "ids", "--direction", "t2i", "--data", "data", "--pack")
    (files / "pictures" / "3.jpg").write_bytes(JPEG + b"\0")
    found = aoq(*packed, code=1)
    assert "pictures/3.jpg: was changed since the folder was prepared; prepare the folder again." in found.stderr
    (files / "pictures" / "3.jpg").write_bytes(JPEG)
    aoq(*packed)


@pytest.mark.parametrize("name", FORMATS)
def test_each_export_has_a_readme_and_its_name_in_the_help(name, files):
    assert name in aoq("export", "--help").stdout.replace(",", " ").split()
    form = FORMATS[name]
    direction = ("--direction", "t2i") if form.directions == "one" else ()
    given = {"text": TEXTS, "id": ("--image-ids", "ids.txt")}.get(form.images, PICTURES)
    scores = VECTORS if form.scores == "always" else ()
    aoq("export", "table", "out", "--format", name, *direction, *given, *scores)
    text = Path("out/README.md").read_text(encoding="utf-8")
    assert f"format {name}" in text
    assert "out/" in text or '"out"' in text or "out," in text
    assert "$" not in text
    assert len(text.split("```")[1].splitlines()) <= 6


def test_scores_of_positives_come_from_the_table_or_from_vectors(files):
    given = ("--format", "flagembedding", "--num-negatives", 2, "--scores", *TEXTS)
    aoq("export", "table", "t2i", *given, "--direction", "t2i")
    aoq("export", "table", "i2t", *given, "--direction", "i2t", *VECTORS)
    i2t, t2i = (list(map(json.loads, Path(one, "train.jsonl").read_text().splitlines())) for one in DIRECTIONS)
    assert [score for line in i2t for score in line["pos_scores"]] == [line["pos_scores"][0] for line in t2i]
    np.save("other.npy", np.load("captions.npy")[::-1])
    other = aoq("export", "table", "out", *given, "--direction", "i2t", "--vectors", "images.npy", "other.npy", code=1)
    assert "give the vectors that the table was mined from" in other.stderr
    swapped = ("export", "table", "out", *given, "--direction", "i2t", "--vectors", "captions.npy", "images.npy")
    assert "30 vectors of images are given for 15 rows" in aoq(*swapped, code=1).stderr
    hard_negatives(*map(np.load, VECTORS[1:]), np.arange(30) // EACH, h=(6, 4)).save("saved")
    aoq("export", "saved", "python", *given, "--direction", "i2t", *VECTORS)
    assert Path("python/train.jsonl").read_text() == Path("i2t/train.jsonl").read_text()
    table = read_table(Path("table"))
    unscored = replace(table.t2i, positive_score=np.full_like(table.t2i.positive_score, np.nan))
    replace(table, t2i=unscored).save("fused")
    refused = aoq("export", "fused", "out", *given, "--direction", "t2i", code=1)
    assert "the table has no scores of some positives, as one fused by ranks" in refused.stderr


def test_official_lists_there_and_back_are_the_same_table(files):
    shown = aoq("export", "table", "f30k", "--format", "aoq").stdout
    assert shown == "i2t: 15 rows\nt2i: 30 rows\nf30k: f30k/README.md has the lines that load it\n"
    lists = ("import-table", "f30k/i2t_f30k.npy")
    aoq(*lists, "back", "--per-image", EACH, *VECTORS, "--normalise")
    assert read_table("back").sha256 == read_table("table").sha256
    assert audit(files / "back") == []
    assert aoq(*lists, "bare", "--per-image", EACH).stdout == (
        "i2t: 15 lists of 6, no scores\nt2i: 30 lists of 4, no scores\n"
    )
    refused = aoq("export", "bare", "out", "--format", "trec", code=1)
    assert "bare was imported without scores" in refused.stderr


def test_a_run_may_lack_queries_and_hold_own_positives_and_is_ordered_by_its_scores(files):
    (files / "i2t.trec").write_text("2 Q0 4 1 0.9 x\n2 Q0 1 2 0.8 x\n0 Q0 5 1 0.5 x\n0 Q0 3 2 0.6 x\n")
    (files / "t2i.trec").write_text("5 Q0 0 1 0.5 x\n")
    shown = aoq("import-table", "i2t.trec", "back", "--per-image", 2)
    assert shown.stdout == (
        "i2t: 3 lists of 2, the source's scores; left out: 1 own positive; without a negative: 1 anchor\n"
        "t2i: 6 lists of 1, the source's scores; without a negative: 5 anchors\n"
    )
    lists = read_table(files / "back").i2t
    assert lists.negative_ids.tolist() == [[3, 5], [-1, -1], [1, -1]]
    np.testing.assert_array_equal(lists.scores, np.float32([[0.6, 0.5], [np.nan] * 2, [0.8, np.nan]]))
    assert audit(files / "back") == []
    (files / "i2t.trec").write_text("2 Q0 1 1 0.1 x\n2 Q0 3 2 0.8 x\n")
    refused = aoq("import-table", "i2t.trec", "far", "--per-image", 2, code=1)
    assert "i2t.trec: scores rise with the rank, as distances do; negate them" in refused.stderr


def test_what_a_view_flags_is_left_out(files):
    aoq("screen", "table", "view", "--range-min", 1, "--mutual-rank", 3)
    table = read_table(Path("table"))
    view = read_view(Path("view"), table.manifest)
    given = ("--format", "triplet", "--direction", "i2t", "--view", "view", *TEXTS)
    aoq("export", "table", "left", *given)
    found = {(row["anchor"], row["negative"]) for row in pq.read_table("left/train.parquet").to_pylist()}
    anchors, places = np.nonzero(view.i2t.flags == 0)
    left = zip(anchors, table.i2t.negative_ids[anchors, places], strict=True)
    assert found == {(f"picture {anchor}", f"caption {caption}") for anchor, caption in left}
    assert 0 < len(found) < IMAGES * 5


def test_rows_of_a_view_have_five_negatives_unless_told_otherwise(files):
    aoq("mine", "images.npy", "captions.npy", "deep", "--per-image", EACH, "--h-captions", 20)
    aoq("screen", "deep", "view", "--range-min", 9)
    given = ("--format", "n-tuple", "--direction", "i2t", "--view", "view", *TEXTS)
    aoq("export", "deep", "five", *given)
    assert pq.read_schema("five/train.parquet").names[-1] == "negative_5"
    assert "--num-negatives" in aoq("export", "deep", "none", *given, "--num-negatives", 20, code=1).stderr


def test_what_is_published_reads_back_as_the_table_it_was(files):
    Path("judged.csv").write_text("caption_id,image_id,probability\n0,1,0.9\n")
    aoq("screen", "table", "view", "--mutual-rank", 2, "--judgements", files / "judged.csv")
    aoq("publish", "table", "out", "--view", "view", "--image-ids", "ids.txt", "--license", "cc-by-4.0")
    table, back = read_table(files / "table"), read_table(files / "out")
    told = {key: value for key, value in back.manifest.items() if key != "ids"}
    assert (back.sha256, told) == (table.sha256, table.manifest)
    assert back.ids == {"images": [f"{row}.jpg" for row in range(IMAGES)]}
    assert audit(files / "out") == []
    assert pq.read_table("out/images.parquet")["image_id"].to_pylist() == [f"{row}.jpg" for row in range(IMAGES)]
    views = [read_view(files / name, table.manifest) for name in ("view", "out/view")]
    np.testing.assert_array_equal(views[0].i2t.flags, views[1].i2t.flags)
    assert str(files) not in Path("out/view/manifest.json").read_text()
    Path("ids.txt").write_text("".join(f"{row}.jpg\n" for row in reversed(range(IMAGES))))
    refused = aoq("publish", "out", "again", "--image-ids", "ids.txt", code=1)
    assert "'14.jpg' is given as image 0, but is image 14 of the table; give ids in its order" in refused.stderr
    Path("ids.jsonl").write_text('{"id": 1}\n' * IMAGES)
    refused = aoq("publish", "table", "again", "--image-ids", "ids.jsonl", code=1)
    assert "ids.jsonl is a table; give one column of it" in refused.stderr
    captions = ("--captions", "captions.txt", "--image-texts", "ids.txt")
    given = ("--format", "triplet", "--direction", "t2i", "--view", "out/view", *captions)
    aoq("export", "out", "triplets", *given)


def test_the_commands_of_the_readme_run(files):
    shutil.rmtree("table")
    shutil.move("pictures", "photos")
    section = (TINY.parent.parent / "README.md").read_text(encoding="utf-8").partition("## Mine your own vectors\n")[2]
    commands = [line.partition("#")[0].split() for line in section.split("```")[1].strip().splitlines()]
    assert [command[:2] for command in commands] == [["aoq", name] for name in ("mine", "inspect", "screen", "export")]
    for _, name, *arguments in commands:
        small = {"5": str(EACH), "17": "7"}
        depths = ("--h-captions", 6, "--h-images", 4) if name == "mine" else ()
        aoq(name, *(small.get(word, word) for word in arguments), *depths)
    captions = pq.read_table("training/captions.parquet")
    assert captions["text"].to_pylist()[3] == "caption 3"
