"""Any corpus by command: many-to-many pairs of queries and documents, documents that are nobody's, and one set."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from aoq.pipeline.cli import main
from aoq.pipeline.tables.audit import audit
from aoq.pipeline.tables.table import read_table

QUERIES, DOCUMENTS, ITEMS = 12, 40, 25
H = {"i2t": 6, "t2i": 4}
QRELS = [(0, 3, 2), (0, 9, 1), (1, 9, 1), (2, 5, 0), (3, 5, 1), (4, 11, 3), (4, 12, 1), (4, 13, 1), (7, 0, 1)]
PAIRS = {(query, document) for query, document, grade in QRELS if grade >= 1}
TWINS = {(0, 1), (1, 0), (1, 2), (2, 1), (8, 20), (20, 8)}


def aoq(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def unit(rng, rows):
    vectors = rng.normal(size=(rows, 6))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture(scope="module")
def mined(tmp_path_factory):
    """Vectors, ids, texts, judgements; `corpus`, a table of two sides, and `set`, one of one set."""
    folder, rng = tmp_path_factory.mktemp("corpus"), np.random.default_rng(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name, rows in (("query", QUERIES), ("document", DOCUMENTS), ("item", ITEMS)):
            np.save(f"{name}.npy", unit(rng, rows))
            Path(f"{name}_ids.txt").write_text("".join(f"{name[0]}{row}\n" for row in range(rows)))
            Path(f"{name}.txt").write_text("".join(f"text of {name} {row}\n" for row in range(rows)))
        ids = pa.table({"id": [f"d{row}" for row in range(DOCUMENTS)]})
        pq.write_table(ids, "document_ids.parquet")
        lines = "".join(f"q{query} 0 d{document} {grade}\n" for query, document, grade in QRELS)
        Path("pairs.qrels").write_text(lines)
        Path("twins.csv").write_text("left,right\ni0,i1\ni2,i1\ni8,i20\ni5,i5\n")
        done = aoq("mine", "query.npy", "document.npy", "corpus", *CORPUS, *DEPTHS)
        assert done.exit_code == 0, done.output
        done = aoq("mine", "item.npy", "set", *TWIN, *DEPTHS[:2])
        assert done.exit_code == 0, done.output
        assert done.stdout == "i2t: 25 lists of 6, exact, 100.00% certified\n"
    return folder


NAMED = ("--image-ids", "query_ids.txt", "--caption-ids", "document_ids.parquet::id")
CORPUS = ("--pairs", "pairs.qrels", *NAMED, "--sides", "queries", "documents")
TWIN = ("--pairs", "twins.csv", "--image-ids", "item_ids.txt")
DEPTHS = ("--h-captions", 6, "--h-images", 4)


@pytest.fixture
def files(mined, tmp_path, monkeypatch):
    shutil.copytree(mined, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def slow(anchors, candidates, own, h):
    """Of every anchor the candidates that are not its own, by score, then by row; and its lowest positive's score."""
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
        "i2t.certificates.parquet",
        "i2t.parquet",
        "manifest.json",
        "positives.parquet",
    ]
    assert ({*map(tuple, table.positives.tolist())}, table.sides) == (TWINS, ("items",))
    own = [[row, *(b for a, b in TWINS if a == row)] for row in range(ITEMS)]
    for row, (ids, scores) in enumerate(slow(items, items, own, 6)):
        assert table.i2t.negative_ids[row].tolist() == ids
        np.testing.assert_array_equal(table.i2t.positive_score[row], min(scores[own[row][1:]], default=np.nan))


def test_the_positives_of_a_table_say_who_belongs_to_whom(files):
    pairs = ("--pairs", "corpus/positives.parquet", *DEPTHS)
    assert aoq("mine", "query.npy", "document.npy", "again", *pairs).exit_code == 0
    assert read_table("again").sha256 == read_table("corpus").sha256
    np.save("pairs.npy", np.array(sorted(PAIRS)))
    assert aoq("mine", "query.npy", "document.npy", "third", "--pairs", "pairs.npy", *DEPTHS).exit_code == 0
    assert read_table("third").sha256 == read_table("corpus").sha256


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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("item.npy", "out", "--per-image", 2),
            "IMAGES alone are one set; --per-image and --caption-ids are for IMAGES",
        ),
        (("item.npy", "out", *TWIN, "--caption-ids", "item_ids.txt"), "IMAGES alone are one set"),
        (
            ("item.npy", "out", "--unpaired", "--h-images", 3),
            "one set has lists of one kind; give their length as --h-c",
        ),
        (("item.npy", "out", *TWIN, "--sides", "a", "b"), "--sides names two sides, and IMAGES alone are one set"),
        (("item.npy", "out"), "say who belongs to whom"),
        (("query.npy", "document.npy", "--pairs", "pairs.qrels"), "OUTPUT is missing after document.npy"),
        (("query.npy", "document.npy", "item.npy", "out", "--unpaired"), "item.npy is one too many"),
        (("query.npy", "document.npy", "out", *CORPUS, "--per-image", 2), "say who belongs to whom"),
        (("query.npy", "document.npy", "out", "--unpaired", "--min-grade", 2), "--min-grade is about the grades of"),
        (("query.npy", "document.npy", "out", "--unpaired", *NAMED), "--caption-ids are for the ids in --pairs FILE"),
        (
            ("item.npy", "item.npy", "out", "--unpaired"),
            "IMAGES and CAPTIONS are the same vectors, and row 0 is not paired",
        ),
        (("query.npy", "document.npy", "out", *CORPUS[:2]), "'q0' is no row number; give --image-ids"),
        (
            ("query.npy", "document.npy", "out", *CORPUS[:2], "--image-ids", "item_ids.txt"),
            "25 image ids are given for 12",
        ),
        (
            ("query.npy", "document.npy", "out", *CORPUS, "--min-grade", 9),
            "no pair has a grade of at least 9, the highest",
        ),
        (("query.npy", "document.npy", "out", *CORPUS, "--h-captions", 38), "lower h_captions to at most 37"),
        (
            ("query.npy", "document.npy", "out", *CORPUS, "--caption-ids", "document_ids.parquet"),
            "names no column of ids; those of text or whole numbers are ['id']: document_ids.parquet::NAME",
        ),
        (("item.npy", "out", *TWIN, "--image-ids", "query_ids.txt"), "12 image ids are given for 25 vectors"),
    ],
)
def test_what_does_not_fit_is_refused_and_leaves_nothing(files, arguments, message):
    before = sorted(path.name for path in files.iterdir())
    depths = DEPTHS[:2] if arguments[1] == "out" else DEPTHS
    shown = aoq("mine", *(() if {"--h-captions", "--h-images"} & {*arguments} else depths), *arguments)
    assert shown.exit_code != 0
    assert message in shown.stderr
    assert sorted(path.name for path in files.iterdir()) == before
