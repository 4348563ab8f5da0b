"""Any corpus by command: many-to-many pairs of queries and documents, documents that are nobody's, one set."""

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from aoq.pipeline.tables.audit import audit
from aoq.pipeline.tables.table import read_table
from tests.cli.conftest import CORPUS, DEPTHS, DOCUMENTS, ITEMS, NAMED, PAIRS, QUERIES, TINY, TWIN, TWINS, H
from tests.cli.conftest import run as aoq
from tests.mining.conftest import check

ITEM_TEXTS = ("--image-texts", "item.txt", "--image-ids", "item_ids.txt")


def test_a_corpus_of_many_to_many_pairs_equals_its_definition(files):
    table, one, other = read_table("corpus"), np.load("query.npy"), np.load("document.npy")
    assert audit(Path("corpus")) == []
    assert {*map(tuple, table.positives.tolist())} == PAIRS
    assert (table.sides, table.manifest["sides"]) == (("queries", "documents"), ["queries", "documents"])
    documents_of = [[document for row, document in PAIRS if row == query] for query in range(QUERIES)]
    queries_of = [[query for query, row in PAIRS if row == document] for document in range(DOCUMENTS)]
    check(table.i2t, one, other, documents_of, H["i2t"])
    check(table.t2i, other, one, queries_of, H["t2i"])


def test_an_estimate_takes_the_same_arguments(files):
    for given in (("query.npy", "document.npy", *CORPUS[:-3], *DEPTHS), ("item.npy", *TWIN, *DEPTHS[:2])):
        shown = aoq("estimate", *given, "--json")
    found = json.loads(shown.stdout)
    assert found["shape"]["h_images"] == 0
    assert found["vector_bytes"] == 4 * 6 * ITEMS


@pytest.mark.parametrize("table", ["corpus", "set"])
def test_every_command_takes_the_table(files, table):
    ids = f"{'query' if table == 'corpus' else 'item'}_ids.txt"
    commands = [
        ("audit", table),
        ("stats", table),
        ("stats", table, "--json"),
        ("diff", table, table),
        ("screen", table, "view", "--mutual-rank", 2, "--relative-margin", 0.1),
        ("stats", table, "--view", "view"),
        ("publish", table, "public", "--view", "view", "--image-ids", ids),
        ("audit", "public"),
    ]
    shown = [aoq(*command) for command in commands]
    found = json.loads(shown[2].stdout)
    assert list(found) == (["i2t", "t2i"] if table == "corpus" else ["i2t"])
    assert read_table("public").sha256 == read_table(table).sha256
    card = Path("public/README.md").read_text()
    if table == "corpus":
        assert "For each of the queries, the documents that a teacher scores highest" in card
        assert "image" not in card.split("---")[1].replace("images", "")
    else:
        assert "For each of the items, the others that a teacher scores highest" in card
        assert "t2i" not in card
        assert pq.read_table("public/items.parquet")["item_id"].to_pylist()[2] == "i2"
    assert "$" not in card


def test_the_lines_of_the_document_run(files):
    """The lines of the section `Any corpus` run, with vectors of these names."""
    text = (TINY.parent.parent / "docs" / "tables.md").read_text(encoding="utf-8")
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
            aoq(*(word.replace("table/", f"table{number}").replace("triplets", f"out{number}") for word in command))
    assert len(blocks) == 2
    assert read_table("table0").positives.tolist() == [[0, 3], [4, 11]]


def exported(name, given, *, table, out="out"):
    aoq("export", table, out, "--format", name, "--num-negatives", 3, *given)
    return Path(out)


def test_texts_of_one_set_are_written_once(files):
    folder = exported("triplet", ITEM_TEXTS, table="set")
    rows = pq.read_table(folder / "train.parquet").to_pylist()
    lists = read_table("set").i2t.negative_ids
    listed = [(one, other, row) for one, other in sorted(TWINS) for row in lists[one, :3].tolist()]
    assert [tuple(row.values()) for row in rows] == [tuple(f"text of item {one}" for one in each) for each in listed]
    folder = exported("ids", ITEM_TEXTS, table="set", out="ids")
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "items.parquet", "train.parquet"]
    assert pq.read_table(folder / "items.parquet").to_pylist()[3] == {"item_id": "i3", "text": "text of item 3"}
    assert 'train, items = (load_dataset("ids", name, split="train") for name in ("train", "items"))' in (
        (folder / "README.md").read_text()
    )
    row, negatives = pq.read_table(folder / "train.parquet").to_pylist()[0], lists[0, :3].tolist()
    assert row == {"query_id": "i0", "positive_id": "i1", "negative_ids": [f"i{one}" for one in negatives]}


def test_a_run_by_ids_is_read_back_with_its_judgements(files):
    exported("trec", NAMED, table="corpus", out="run")
    back = ("import-table", "run/i2t.trec", "back", "--pairs", "pairs.qrels", *NAMED)
    shown = aoq(*back, "--vectors", "query.npy", "document.npy")
    table, again = read_table("corpus"), read_table("back")
    assert audit(Path("back")) == []
    np.testing.assert_array_equal(again.i2t.negative_ids, table.i2t.negative_ids[:, :3])
    np.testing.assert_array_equal(again.t2i.positive_score, table.t2i.positive_score)
    assert {*map(tuple, again.positives.tolist())} == PAIRS
    assert again.manifest["dataset"] == table.manifest["dataset"]
    shown = aoq("import-table", "run/i2t.trec", "out", "--pairs", "pairs.qrels", *NAMED[:2], code=1)
    assert "'d" in shown.stderr
    assert "is not a row number; give --caption-ids where captions go by ids" in shown.stderr
    exported("trec", ITEM_TEXTS[2:], table="set", out="one")
    assert sorted(path.name for path in Path("one").iterdir()) == ["README.md", "i2t.trec"]
    assert "of one set cannot be imported" in aoq("import-table", "one/i2t.trec", "out", "--unpaired", code=1).stderr
