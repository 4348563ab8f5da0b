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
from tests.cli.conftest import JPEG

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
        assert done.stdout == "i2t: 25 lists of 6, exact, 100.00% certified\nset\n"
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


def head(table, direction, anchor, depth=3):
    return [row for row in table[direction].negative_ids[anchor, :depth].tolist() if row >= 0]


TEXTS = ("--image-texts", "query.txt", "--captions", "document.txt", *NAMED)
ITEM_TEXTS = ("--image-texts", "item.txt", "--image-ids", "item_ids.txt")


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
    assert "positives of an anchor the table keeps the lowest score only; give --vectors" in shown.stderr
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
    ("table", "arguments", "message"),
    [
        (
            "corpus",
            ("triplet", "--image-texts", "query.txt", "--direction", "i2t"),
            "triplet has the captions' texts, and",
        ),
        ("corpus", ("triplet", *TEXTS), "say whose lists: --direction"),
        (
            "corpus",
            ("triplet", *TEXTS, "--direction", "i2t", "--caption-root", "."),
            "a caption goes as its picture or as",
        ),
        (
            "corpus",
            ("trec", "--caption-root", "."),
            "trec has ids alone, and has no place for pictures; leave out --caption",
        ),
        ("corpus", ("trec", "--caption-ids", "query_ids.txt"), "12 caption ids are given for a table of 40"),
        ("corpus", ("negclip", "--image-root", ".", "--caption-root", "."), "negclip has captions as texts; give"),
        (
            "corpus",
            ("colpali", "--direction", "t2i", "--image-texts", "query.txt", "--caption-root", "."),
            "reads its queries as text, and t2i has pictures there; give --direction i2t",
        ),
        ("set", ("triplet", *ITEM_TEXTS, "--direction", "t2i"), "of one set both directions have the same lists"),
        (
            "set",
            ("triplet", *ITEM_TEXTS, "--captions", "item.txt"),
            "this table is of one set, whose rows go by --image-ids",
        ),
        ("set", ("triplet", "--image-ids", "item_ids.txt"), "triplet has the images' pictures, and none are given"),
        ("set", ("negclip", *ITEM_TEXTS), "negclip joins images and captions, and this table is of one set"),
        ("set", ("triplet", "--data", "."), "--data has images and captions, and the table is of one set"),
        ("set", ("trec", "--image-ids", "query_ids.txt"), "12 item ids are given for a table of 25"),
    ],
)
def test_exports_that_cannot_be_made_are_refused(files, table, arguments, message):
    before = sorted(path.name for path in files.iterdir())
    shown = aoq("export", table, "out", "--format", *arguments)
    assert shown.exit_code != 0
    assert message in shown.stderr
    assert sorted(path.name for path in files.iterdir()) == before


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
        (("item.npy", "out"), "give the true pairs"),
        (("query.npy", "document.npy", "--pairs", "pairs.qrels"), "OUTPUT is missing after document.npy"),
        (("query.npy", "document.npy", "item.npy", "out", "--unpaired"), "item.npy is one too many"),
        (("query.npy", "document.npy", "out", *CORPUS, "--per-image", 2), "give the true pairs"),
        (("query.npy", "document.npy", "out", "--unpaired", "--min-grade", 2), "--min-grade is about the grades of"),
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
        (("query.npy", "document.npy", "out", *CORPUS, "--h-captions", 38), "lower --h-captions to at most 37"),
        (
            ("query.npy", "document.npy", "out", *CORPUS, "--caption-ids", "document_ids.parquet"),
            "names no column of ids; those of texts or whole numbers are ['id']: document_ids.parquet::NAME",
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


def test_the_lines_of_the_document_run(files):
    """Those of `Any corpus`, with vectors of these names."""
    text = (Path(__file__).parent.parent.parent / "docs" / "tables.md").read_text(encoding="utf-8")
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
