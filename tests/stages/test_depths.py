"""A [mining] section that asks for more negatives than there are mines those that there are."""

from __future__ import annotations

import numpy as np
import pytest

from aoq.pipeline.mining.sizes import fit_depths
from aoq.pipeline.tables.table import read_table
from tests.stages.conftest import OWN


def test_an_anchor_of_all_candidates_is_refused():
    """Caption 1 is true of both images."""
    positives = np.array([[0, 0], [0, 1], [1, 1]])
    with pytest.raises(ValueError, match="caption 1 matches all 2 images, so it has no negative"):
        fit_depths(positives, 2, 3, h_captions=1, h_images=1)


def test_lists_are_as_long_as_the_data_allows_and_so_are_tables_made_of_them(make, tmp_path, caplog):
    """Each of 40 images has 5 of 200 captions, so 195 are negatives; of a caption's images 39."""
    deep = "h_captions = 300, h_images = 60"
    teacher = OWN.replace("h_captions = 9, h_images = 4", deep).replace("16", "24")
    chain = make("deep", "dataset", "mining", "second_round", teacher=teacher)
    shorter = "lists hold 195 captions instead of 300 and 39 images instead of 60: the data has no more negatives"
    assert [record.message for record in caplog.records if "lists hold" in record.message] == [shorter] * 2
    first, reordered = (str(tmp_path / f"{name}.toml") for name in ("deep", "reordered"))
    made_of_it = {
        "reordered": f'rerank = {{{{shortlist = "{first}", teacher = "{first}", {deep}}}}}',
        "fused": f'fusion = {{{{members = ["{first}", "{reordered}"], method = "rank", {deep}}}}}',
    }
    for each in [chain, *(make(name, "hard_negatives", text=text) for name, text in made_of_it.items())]:
        table = read_table(each["hard_negatives"].path / "table")
        assert (table.i2t.h, table.t2i.h) == (195, 39)
        for row, ids in enumerate(table.i2t.negative_ids):
            assert sorted(ids) == [caption for caption in range(200) if caption // 5 != row]
