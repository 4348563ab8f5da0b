"""Mining any corpus by command: many-to-many pairs of queries and documents, documents that are nobody's, one set."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from aoq.pipeline.tables.audit import audit
from aoq.pipeline.tables.table import read_table
from tests.cli.conftest import refusals
from tests.cli.corpus.conftest import CORPUS, DEPTHS, DOCUMENTS, ITEMS, PAIRS, TWIN, TWINS, H, aoq


def slow(anchors, candidates, own, h):
    """Yield each anchor's candidates that are not its own, by score, then row; and all its scores."""
    scores = (anchors.astype(np.float64) @ candidates.astype(np.float64).T).astype(np.float32)
    for row in range(len(anchors)):
        rest = [other for other in range(len(candidates)) if other not in own[row]]
        yield sorted(rest, key=lambda other: (-scores[row, other], other))[:h], scores[row]


def test_a_corpus_of_many_to_many_pairs_equals_its_definition(files):
    table, one, other = read_table("corpus"), np.load("query.npy"), np.load("document.npy")
    assert audit(Path("corpus")) == []
    assert {*map(tuple, table.positives.tolist())} == PAIRS
    assert (table.sides, table.manifest["sides"]) == (("queries", "documents"), ["queries", "documents"])
    for direction, pairs, anchors, candidates in (
        ("i2t", PAIRS, one, other),
        ("t2i", {pair[::-1] for pair in PAIRS}, other, one),
    ):
        own = [[b for a, b in pairs if a == row] for row in range(len(anchors))]
        lists = table[direction]
        for row, (ids, scores) in enumerate(slow(anchors, candidates, own, H[direction])):
            assert lists.negative_ids[row].tolist() == ids
            np.testing.assert_array_equal(lists.positive_score[row], min(scores[own[row]], default=np.nan))


def test_one_set_equals_its_definition(files):
    table, items = read_table("set"), np.load("item.npy")
    assert audit(Path("set")) == []
    assert sorted(path.name for path in Path("set").iterdir()) == [
        "README.md",
        "i2t.certificates.parquet",
        "i2t.parquet",
        "items.parquet",
        "manifest.json",
        "positives.parquet",
    ]
    assert ({*map(tuple, table.positives.tolist())}, table.sides) == (TWINS, ("items",))
    own = [[row, *(b for a, b in TWINS if a == row)] for row in range(ITEMS)]
    for row, (ids, scores) in enumerate(slow(items, items, own, 6)):
        assert table.i2t.negative_ids[row].tolist() == ids
        np.testing.assert_array_equal(table.i2t.positive_score[row], min(scores[own[row][1:]], default=np.nan))


def test_a_higher_grade_leaves_the_others_as_candidates(files):
    graded = ("--min-grade", 2, "--h-captions", DOCUMENTS - 1, "--h-images", 4)
    assert aoq("mine", "query.npy", "document.npy", "best", *CORPUS, *graded).exit_code == 0
    table = read_table("best")
    assert table.positives.tolist() == [[0, 3], [4, 11]]
    assert 9 in table.i2t.negative_ids[0]


def test_an_estimate_takes_the_same_arguments(files):
    for given in (("query.npy", "document.npy", *CORPUS[:-3], *DEPTHS), ("item.npy", *TWIN, *DEPTHS[:2])):
        shown = aoq("estimate", *given, "--json")
        assert shown.exit_code == 0, shown.output
    found = json.loads(shown.stdout)
    assert found["shape"]["h_images"] == 0
    assert found["vector_bytes"] == 4 * 6 * ITEMS


@pytest.mark.parametrize("table", ["corpus", "set"])
def test_every_command_takes_the_table(files, table):
    commands = [
        ("audit", table),
        ("stats", table),
        ("stats", table, "--json"),
        ("diff", table, table),
        ("screen", table, "view", "--mutual-rank", 2, "--relative-margin", 0.1),
        ("stats", table, "--view", "view"),
        (
            "publish",
            table,
            "public",
            "--view",
            "view",
            "--image-ids",
            f"{'query' if table == 'corpus' else 'item'}_ids.txt",
        ),
        ("audit", "public"),
    ]
    shown = [aoq(*command) for command in commands]
    assert [one.exit_code for one in shown] == [0] * len(shown), [one.output for one in shown]
    found = json.loads(shown[2].stdout)
    assert list(found) == (["i2t", "t2i"] if table == "corpus" else ["i2t"])
    assert read_table("public").sha256 == read_table(table).sha256
    card = Path("public/README.md").read_text()
    if table == "corpus":
        assert "for each of the queries the documents, and for each of the documents the queries" in card
        assert "image" not in card.split("---")[1].replace("images", "")
    else:
        assert "for each of the items the others" in card
        assert "t2i" not in card
        assert pq.read_table("public/items.parquet")["item_id"].to_pylist()[2] == "i2"
        refused = aoq("publish", table, "again", "--caption-ids", "item_ids.txt")
        assert "the table is of one set, whose ids are --image-ids" in refused.stderr
    assert "$" not in card


@pytest.mark.parametrize(
    ("arguments", "message"),
    refusals(
        """
item.npy out --per-image 2 :: IMAGES alone are one set; --per-image and --caption-ids are for IMAGES
item.npy out $TWIN --caption-ids item_ids.txt :: IMAGES alone are one set
item.npy out --unpaired --h-images 3 :: one set has lists of one kind; give their length as --h-c
item.npy out $TWIN --sides a b :: --sides names two sides, and IMAGES alone are one set
item.npy out :: give the true pairs
query.npy document.npy --pairs pairs.qrels :: OUTPUT is missing after document.npy
query.npy document.npy item.npy out --unpaired :: item.npy is one too many
query.npy document.npy out $CORPUS --per-image 2 :: give the true pairs
query.npy document.npy out --unpaired --min-grade 2 :: --min-grade is about the grades of
item.npy item.npy out --unpaired :: IMAGES and CAPTIONS are the same vectors, and row 0 is not paired
query.npy document.npy out --pairs pairs.qrels :: 'q0' is no row number; give --image-ids
query.npy document.npy out --pairs pairs.qrels --image-ids item_ids.txt :: 25 image ids are given for 12
query.npy document.npy out $CORPUS --min-grade 9 :: no pair has a grade of at least 9, the highest
query.npy document.npy out $CORPUS --h-captions 41 :: at most 40 negatives in a list; lower it to at most 40
query.npy document.npy out $CORPUS --caption-ids document_ids.parquet :: names no column of ids; those of texts or whole
item.npy out $TWIN --image-ids query_ids.txt :: 12 image ids are given for 25 vectors
""",
        CORPUS=CORPUS,
        TWIN=TWIN,
    ),
)
def test_what_does_not_fit_is_refused_and_leaves_nothing(files, arguments, message):
    before = sorted(path.name for path in files.iterdir())
    depths = DEPTHS[:2] if arguments[1] == "out" else DEPTHS
    shown = aoq("mine", *(() if {"--h-captions", "--h-images"} & {*arguments} else depths), *arguments)
    assert shown.exit_code != 0
    assert message in shown.stderr
    assert sorted(path.name for path in files.iterdir()) == before


def test_the_lines_of_the_document_run(files):
    """The lines of the section `Any corpus` run, with vectors of these names."""
    text = (Path(__file__).parent.parent.parent.parent / "docs" / "tables.md").read_text(encoding="utf-8")
    section = text.split("## Any corpus\n")[1].split("\n## ")[0]
    for name, source in (("queries", "query"), ("documents", "document"), ("products", "item")):
        shutil.copy(f"{source}.npy", f"{name}.npy")
        shutil.copy(f"{source}.txt", f"{name}.txt")
    shutil.copy("item_ids.txt", "product_ids.txt")
    shutil.copy("document_ids.parquet", "documents.parquet")
    shutil.copy("pairs.qrels", "train.qrels")
    shutil.copy("twins.csv", "same_product.csv")
    blocks = [block.replace("\\\n", " ").strip().splitlines() for block in section.split("```")[1::2]]
    small = {"30": "6", "10": "4", "50": "6"}
    for number, block in enumerate(blocks):
        for line in block:
            command = [small.get(word, word) for word in line.split()[1:]]
            shown = aoq(
                *(word.replace("table/", f"table{number}").replace("triplets", f"out{number}") for word in command)
            )
            assert shown.exit_code == 0, (line, shown.output)
    assert len(blocks) == 2
    assert read_table("table0").positives.tolist() == [[0, 3], [4, 11]]
