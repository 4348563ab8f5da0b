"""Exports of any corpus by command: texts, pictures, scores and runs of both sides, or of one set."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from aoq.pipeline.tables.audit import audit
from aoq.pipeline.tables.table import read_table
from tests.cli.conftest import JPEG, refusals
from tests.cli.corpus.conftest import DOCUMENTS, NAMED, PAIRS, TWINS, aoq

TEXTS = ("--image-texts", "query.txt", "--captions", "document.txt", *NAMED)
ITEM_TEXTS = ("--image-texts", "item.txt", "--image-ids", "item_ids.txt")


def head(table, direction, anchor, depth=3):
    return [row for row in table[direction].negative_ids[anchor, :depth].tolist() if row >= 0]


def said(name, row):
    return f"text of {name} {row}"


def written(name, given, *, table, out="out"):
    shown = aoq("export", table, out, "--format", name, "--num-negatives", 3, *given)
    assert shown.exit_code == 0, shown.output
    return Path(out)


def triplets(pairs, lists, anchors, candidates):
    for anchor, positive in sorted(pairs):
        for negative in head(lists, "i2t" if anchors != "document" else "t2i", anchor):
            yield {
                "anchor": said(anchors, anchor),
                "positive": said(candidates, positive),
                "negative": said(candidates, negative),
            }


@pytest.mark.parametrize("name", ["triplet", "n-tuple", "labeled-pair", "labeled-list"])
@pytest.mark.parametrize("direction", ["i2t", "t2i"])
def test_texts_of_both_sides_have_a_row_a_pair(files, name, direction):
    """Several positives an anchor are several rows; who has none has no row."""
    folder = written(name, (*TEXTS, "--direction", direction), table="corpus")
    rows = pq.read_table(folder / "train.parquet").to_pylist()
    sides, pairs = ("query", "document"), PAIRS
    if direction == "t2i":
        sides, pairs = sides[::-1], {pair[::-1] for pair in PAIRS}
    expected = list(triplets(pairs, read_table("corpus"), *sides))
    if name == "triplet":
        assert rows == expected
    elif name == "n-tuple":
        assert [row["negative_1"] for row in rows] == [row["negative"] for row in expected[::3]]
        assert [(row["anchor"], row["positive"]) for row in rows] == [
            (r["anchor"], r["positive"]) for r in expected[::3]
        ]
    elif name == "labeled-list":
        assert [row["positive"][1:] for row in rows] == [
            [row["negative"] for row in expected[start : start + 3]] for start in range(0, len(expected), 3)
        ]
    else:
        found = {(row["anchor"], row["positive"]) for row in rows if row["label"]}
        assert found == {(said(sides[0], a), said(sides[1], b)) for a, b in pairs}


def test_texts_of_one_set_are_written_once(files):
    folder = written("triplet", ITEM_TEXTS, table="set")
    rows = pq.read_table(folder / "train.parquet").to_pylist()
    assert rows == list(triplets(TWINS, read_table("set"), "item", "item"))
    folder = written("ids", ITEM_TEXTS, table="set", out="ids")
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "items.parquet", "train.parquet"]
    assert pq.read_table(folder / "items.parquet").to_pylist()[3] == {"item_id": "i3", "text": said("item", 3)}
    assert 'train, items = (load_dataset("ids", name, split="train") for name in ("train", "items"))' in (
        (folder / "README.md").read_text()
    )
    row = pq.read_table(folder / "train.parquet").to_pylist()[0]
    assert row == {
        "query_id": "i0",
        "positive_id": "i1",
        "negative_ids": [f"i{negative}" for negative in head(read_table("set"), "i2t", 0)],
    }


def test_json_lines_have_all_positives_of_an_anchor(files):
    lines = (written("flagembedding", (*TEXTS, "--direction", "i2t"), table="corpus") / "train.jsonl").read_text()
    rows = [json.loads(line) for line in lines.splitlines()]
    assert [row["query"] for row in rows] == [said("query", row) for row in (0, 1, 3, 4, 7)]
    assert rows[3]["pos"] == [said("document", row) for row in (11, 12, 13)]
    assert rows[3]["neg"] == [said("document", row) for row in head(read_table("corpus"), "i2t", 4)]
    lines = (written("flagembedding", ITEM_TEXTS, table="set", out="two") / "train.jsonl").read_text()
    assert [json.loads(line)["query"] for line in lines.splitlines()] == [said("item", row) for row in (0, 1, 2, 8, 20)]


@pytest.mark.parametrize(
    ("table", "given", "sides"),
    [
        ("corpus", (*TEXTS, "--direction", "i2t", "--vectors", "query.npy", "document.npy"), ("query", "document")),
        ("set", (*ITEM_TEXTS, "--vectors", "item.npy", "item.npy"), ("item", "item")),
    ],
)
def test_scores_of_several_positives_need_the_vectors(files, table, given, sides):
    shown = aoq("export", table, "none", "--format", "pylate", *given[:-3])
    assert "the table keeps only the lowest score of each anchor's; give --vectors" in shown.stderr
    rows = pq.read_table(written("pylate", given, table=table) / "train.parquet").to_pylist()
    vectors = [np.load(f"{side}.npy").astype(np.float64) for side in sides]
    pairs = PAIRS if table == "corpus" else TWINS
    for row, (one, other) in zip(rows, sorted(pairs), strict=True):
        assert row["document_ids"][0] == f"{sides[1][0]}{other}"
        assert row["scores"][0] == np.float32(vectors[0][one] @ vectors[1][other])


def test_a_run_by_ids_is_read_back_with_its_judgements(files):
    written("trec", NAMED, table="corpus", out="run")
    back = ("import-table", "run/i2t.trec", "back", "--pairs", "pairs.qrels", *NAMED)
    shown = aoq(*back, "--vectors", "query.npy", "document.npy")
    assert shown.exit_code == 0, shown.output
    table, again = read_table("corpus"), read_table("back")
    assert audit(Path("back")) == []
    np.testing.assert_array_equal(again.i2t.negative_ids, table.i2t.negative_ids[:, :3])
    np.testing.assert_array_equal(again.t2i.positive_score, table.t2i.positive_score)
    assert {*map(tuple, again.positives.tolist())} == PAIRS
    assert again.manifest["dataset"] == table.manifest["dataset"]
    shown = aoq("import-table", "run/i2t.trec", "out", "--pairs", "pairs.qrels", *NAMED[:2])
    assert "'d" in shown.stderr
    assert "is no row number; give --caption-ids where captions go by ids" in shown.stderr
    written("trec", ITEM_TEXTS[2:], table="set", out="one")
    assert sorted(path.name for path in Path("one").iterdir()) == ["README.md", "i2t.trec"]
    assert "and one set is not imported" in aoq("import-table", "one/i2t.trec", "out", "--unpaired").stderr


def test_pictures_on_both_sides(files):
    for name in ("query", "document", "item"):
        Path(f"{name}s").mkdir()
        for row in range(DOCUMENTS):
            Path(f"{name}s/{name[0]}{row}.jpg").write_bytes(JPEG)
    given = ("--image-root", "querys", "--caption-root", "documents", *NAMED, "--direction", "t2i")
    row = pq.read_table(written("triplet", given, table="corpus") / "train.parquet").to_pylist()[0]
    assert (row["anchor"], row["positive"]) == (str(files / "documents/d0.jpg"), str(files / "querys/q7.jpg"))
    given = ("--image-root", "items", "--image-ids", "item_ids.txt")
    row = pq.read_table(written("triplet", given, table="set", out="one") / "train.parquet").to_pylist()[0]
    assert (row["anchor"], row["positive"]) == (str(files / "items/i0.jpg"), str(files / "items/i1.jpg"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    refusals(
        """
corpus triplet --image-texts query.txt --direction i2t :: triplet has the captions' texts, and
corpus triplet $TEXTS :: say whose lists: --direction
corpus triplet $TEXTS --direction i2t --caption-root . :: a caption goes as its picture or as
corpus trec --caption-root . :: trec has ids alone, and has no place for pictures; leave out --caption
corpus trec --caption-ids query_ids.txt :: 12 caption ids are given for a table of 40
corpus negclip --image-root . --caption-root . :: negclip has captions as texts; give
corpus colpali --direction t2i --image-texts query.txt --caption-root . :: reads its queries as text, and t2i has pictur
set triplet $ITEM_TEXTS --direction t2i :: in one set both directions have the same lists
set triplet $ITEM_TEXTS --captions item.txt :: this table is of one set, whose rows go by --image-ids
set triplet --image-ids item_ids.txt :: triplet has the images' pictures, and none are given
set negclip $ITEM_TEXTS :: negclip joins images and captions, and this table is of one set
set triplet --data . :: --data has images and captions, and the table is of one set
set trec --image-ids query_ids.txt :: 12 item ids are given for a table of 25
""",
        TEXTS=TEXTS,
        ITEM_TEXTS=ITEM_TEXTS,
    ),
)
def test_exports_that_cannot_be_made_are_refused(files, arguments, message):
    before = sorted(path.name for path in files.iterdir())
    shown = aoq("export", arguments[0], "out", "--format", *arguments[1:])
    assert shown.exit_code != 0
    assert message in shown.stderr
    assert sorted(path.name for path in files.iterdir()) == before
