"""Exports of any corpus by command: texts, pictures, scores and runs of both sides, or of one set."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from aoq.pipeline.tables.audit import audit
from aoq.pipeline.tables.table import read_table
from tests.cli.conftest import refusals
from tests.cli.corpus.conftest import NAMED, PAIRS, TWINS, aoq

TEXTS = ("--image-texts", "query.txt", "--captions", "document.txt", *NAMED)
ITEM_TEXTS = ("--image-texts", "item.txt", "--image-ids", "item_ids.txt")


def said(row):
    return f"text of item {row}"


def written(name, given, *, table, out="out"):
    shown = aoq("export", table, out, "--format", name, "--num-negatives", 3, *given)
    assert shown.exit_code == 0, shown.output
    return Path(out)


def test_texts_of_one_set_are_written_once(files):
    folder = written("triplet", ITEM_TEXTS, table="set")
    rows = pq.read_table(folder / "train.parquet").to_pylist()
    lists = read_table("set").i2t.negative_ids
    listed = [(one, other, row) for one, other in sorted(TWINS) for row in lists[one, :3].tolist()]
    assert [(row["anchor"], row["positive"], row["negative"]) for row in rows] == [
        tuple(map(said, each)) for each in listed
    ]
    folder = written("ids", ITEM_TEXTS, table="set", out="ids")
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "items.parquet", "train.parquet"]
    assert pq.read_table(folder / "items.parquet").to_pylist()[3] == {"item_id": "i3", "text": said(3)}
    assert 'train, items = (load_dataset("ids", name, split="train") for name in ("train", "items"))' in (
        (folder / "README.md").read_text()
    )
    row = pq.read_table(folder / "train.parquet").to_pylist()[0]
    assert row == {
        "query_id": "i0",
        "positive_id": "i1",
        "negative_ids": [f"i{negative}" for negative in lists[0, :3].tolist()],
    }


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
