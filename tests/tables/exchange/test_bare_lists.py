"""Other programs' lists as tables: what is dropped, ordered and scored, and what a table made so can do."""

from __future__ import annotations

import numpy as np
import pytest

from aoq.pipeline.search.problem import DIRECTIONS
from aoq.pipeline.tables.audit import audit
from aoq.pipeline.tables.exchange import bare_lists
from aoq.pipeline.tables.exchange.bare_lists import import_lists
from aoq.pipeline.tables.table import read_table

IMAGES, EACH = 9, 2
IMAGE_OF = np.repeat(np.arange(IMAGES, dtype=np.int32), EACH)
COUNTS = {"i2t": (IMAGES, IMAGES * EACH), "t2i": (IMAGES * EACH, IMAGES)}


@pytest.fixture
def vectors():
    rng = np.random.default_rng(0)
    counts = {"images": IMAGES, "captions": IMAGES * EACH}
    return {side: rng.integers(-3, 4, size=(rows, 5)).astype(np.float32) for side, rows in counts.items()}  # many ties


@pytest.fixture
def raw():
    """Candidates in random order, own positives among them; with scores that rise and tie."""
    rng = np.random.default_rng(1)
    lists = {}
    for direction, (anchors, candidates) in COUNTS.items():
        ids = np.array([rng.permutation(candidates)[:7] for _ in range(anchors)], dtype=np.int32)
        lists[direction] = f"{direction}.trec", ids, rng.integers(0, 4, size=ids.shape).astype(np.float32)
    return lists


def imported(raw, vectors, folder):
    import_lists(raw, IMAGE_OF, vectors, provenance={"dataset": "d"}, output=folder / "table")
    return read_table(folder / "table")


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("kind", ["none", "source", "exact"])
def test_own_positives_go_and_scores_order_the_lists(raw, vectors, tmp_path, kind, direction, monkeypatch):
    """The scores are those of the source, or exact with vectors; without any the order stays."""
    monkeypatch.setattr(bare_lists, "BLOCK_LISTS", 4)
    given = raw if kind == "source" else {one: (name, ids, None) for one, (name, ids, _) in raw.items()}
    table = imported(given, vectors if kind == "exact" else None, tmp_path)
    both = vectors["images"] @ vectors["captions"].T  # of small integers: exact
    products, left_out = both if direction == "i2t" else both.T, 0
    for anchor, (ids, scores) in enumerate(zip(*raw[direction][1:], strict=True)):
        own = np.flatnonzero(anchor == IMAGE_OF) if direction == "i2t" else [IMAGE_OF[anchor]]
        known = products[anchor, ids] if kind == "exact" else scores
        rows = [(row, score) for row, score in zip(ids.tolist(), known.tolist(), strict=True) if row not in own]
        left_out += len(ids) - len(rows)
        if kind != "none":
            rows.sort(key=lambda entry: (-entry[1], entry[0]))
        found = table[direction].negative_ids[anchor]
        assert found[found >= 0].tolist() == [row for row, _ in rows]
        expected = [np.nan] * len(rows) if kind == "none" else [score for _, score in rows]
        np.testing.assert_array_equal(table[direction].scores[anchor, : len(rows)], expected)
        lowest = min(products[anchor, row] for row in own) if kind == "exact" else np.nan
        np.testing.assert_equal(table[direction].positive_score[anchor], np.float32(lowest))
    about = table.manifest["directions"][direction]
    assert about["own_positives_left_out"] == left_out > 0
    assert (about["guarantee"], about["scores"], about["h"]) == ("imported", kind, 7)
    assert ("first_score_mean" in about) == (kind != "none")
    assert audit(tmp_path / "table") == []


def test_vectors_of_other_data_are_refused(raw, vectors, tmp_path):
    vectors["captions"] = vectors["captions"][:5]
    with pytest.raises(ValueError, match=r"vectors of 9 images and 5 captions, and lists for 9 and 18"):
        imported(raw, vectors, tmp_path)
