"""`aoq publish` as users run it: what others get is a table, and tells nothing of this machine."""

from __future__ import annotations

import numpy as np
import pyarrow.parquet as pq
import pytest

from aoq.pipeline.tables.audit import audit
from aoq.pipeline.tables.screens.view import read_view
from aoq.pipeline.tables.table import read_table
from tests.cli.conftest import EACH, IMAGES
from tests.cli.conftest import run as aoq


@pytest.fixture
def files(files):
    """The table with a view of it."""
    assert aoq("screen", "table", "view", "--mutual-rank", 2).exit_code == 0
    return files


def test_it_reads_back_as_the_table_it_was(files):
    shown = aoq("publish", "table", "out", "--view", "view", "--image-ids", "ids.txt", "--license", "cc-by-4.0")
    assert shown.exit_code == 0, shown.stderr
    table, back = read_table(files / "table"), read_table(files / "out")
    told = {key: value for key, value in back.manifest.items() if key != "ids"}
    assert (back.sha256, told) == (table.sha256, table.manifest)
    assert back.ids == {"images": [f"{row}.jpg" for row in range(IMAGES)]}
    assert audit(files / "out") == []
    assert pq.read_table("out/images.parquet")["image_id"].to_pylist() == [f"{row}.jpg" for row in range(IMAGES)]
    views = [read_view(files / name, table.manifest) for name in ("view", "out/view")]
    np.testing.assert_array_equal(views[0].i2t.flags, views[1].i2t.flags)
    captions = ("--captions", "captions.txt", "--image-texts", "ids.txt")
    given = ("--format", "triplet", "--direction", "t2i", "--view", "out/view", *captions)
    assert aoq("export", "out", "triplets", *given).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("table", "out", "--image-ids", "captions.txt"), "30 image ids are given for a table of 15"),
        (("table", "out", "--view", "table"), "table/manifest.json is damaged or not a view's manifest"),
        (("other", "out", "--view", "view"), "view is a view of another table"),
        (("nowhere", "out"), "nowhere is neither an experiment nor a table's folder"),
        (("table", "x" * 250), "choose a name of at most 240 bytes, as temporary files need a longer one"),
        (("table", "p\udcff"), "has a name that is not UTF-8, which Arrow cannot write; choose another"),
        (("table", "view"), "view is there already; remove it or choose another name"),
        (("changed", "out"), "changed does not pass `aoq audit`: i2t.parquet: its lists are not those whose sha256"),
        (("uncertified", "out"), "does not pass `aoq audit`: i2t.certificates.parquet: its anchors are not"),
    ],
)
def test_what_cannot_be_published_leaves_nothing(files, arguments, message):
    options = ("--per-image", EACH, "--normalise", "--h-captions", 5, "--h-images", 4)
    for name in ("other", "changed", "uncertified"):
        assert aoq("mine", "images.npy", "captions.npy", name, *options).exit_code == 0
    pq.write_table(pq.read_table("table/t2i.parquet"), "changed/t2i.parquet")
    lists = pq.read_table("changed/i2t.parquet")
    pq.write_table(
        lists.set_column(3, "positive_score", lists["positive_score"].combine_chunks()[::-1]), "changed/i2t.parquet"
    )
    empty = pq.read_table(bounds := "uncertified/i2t.certificates.parquet").slice(0, 0)
    pq.write_table(empty, bounds)
    before = sorted(path.name for path in files.iterdir())
    shown = aoq("publish", *arguments)
    assert shown.exit_code == 1
    assert message in shown.stderr
    assert shown.stderr.count("\n") == 1
    assert sorted(path.name for path in files.iterdir()) == before
