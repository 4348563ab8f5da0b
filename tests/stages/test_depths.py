"""A [mining] section that asks for more negatives than there are mines those that there are."""

from __future__ import annotations

import numpy as np
import pytest

from aoq.pipeline.mining.sizes import fit_depths
from aoq.pipeline.tables.table import read_table

TEACHER = 'first_round = {epochs = 1, batch_size = 24, loss.name = "online"}\nmining = {h_captions = %d, h_images = 60}'


def test_lists_are_as_long_as_the_data_allows_and_students_train_on_them(make, caplog):
    """Each of 40 images has 5 of 200 captions, so 195 are negatives; of a caption's images 39."""
    chain = make("deep", "dataset", "mining", "second_round", teacher=TEACHER % 300)
    said = "lists hold 195 captions instead of 300 and 39 images instead of 60: the data has no more negatives"
    assert [record.message for record in caplog.records if "lists hold" in record.message] == [said, said]
    table = read_table(chain["hard_negatives"].path / "table")
    assert (table.i2t.h, table.t2i.h) == (195, 39)
    for row, ids in enumerate(table.i2t.negative_ids):
        assert sorted(ids) == [caption for caption in range(200) if caption // 5 != row]


def test_nothing_is_said_of_lists_that_fit():
    positives = np.repeat(np.arange(40), 5)
    assert fit_depths(positives, 40, 200, h_captions=195, h_images=39) == ({"i2t": 195, "t2i": 39}, "")


def test_an_anchor_of_all_candidates_is_refused():
    """Caption 1 is true of both images."""
    positives = np.array([[0, 0], [0, 1], [1, 1]])
    with pytest.raises(ValueError, match="caption 1 matches all 2 images, so it has no negative"):
        fit_depths(positives, 2, 3, h_captions=1, h_images=1)


def test_tables_made_of_short_ones_are_as_short(make, tmp_path):
    """Reordered and fused lists that ask for more than there is."""
    deep = "h_captions = 300, h_images = 60"
    make("first", "dataset", "mining", "second_round", teacher=TEACHER % 300)
    first, reordered = (str(tmp_path / f"{name}.toml") for name in ("first", "reordered"))
    of_short = {
        "reordered": {"text": f'rerank = {{{{shortlist = "{first}", teacher = "{first}", {deep}}}}}'},
        "fused": {"text": f'fusion = {{{{members = ["{first}", "{reordered}"], method = "rank", {deep}}}}}'},
    }
    for name, parts in of_short.items():
        table = read_table(make(name, "hard_negatives", **parts)["hard_negatives"].path / "table")
        assert (table.i2t.h, table.t2i.h) == (195, 39), name
        assert (np.sort(table.t2i.negative_ids) >= 0).all(), name
