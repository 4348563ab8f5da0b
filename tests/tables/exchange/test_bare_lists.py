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
    return {"images": matrix(rng, IMAGES), "captions": matrix(rng, IMAGES * EACH)}


def matrix(rng, rows):
    return rng.integers(-3, 4, size=(rows, 5)).astype(np.float32)  # many ties


@pytest.fixture
def raw():
    """Candidates in random order, own positives among them; with scores that rise and tie."""
    rng = np.random.default_rng(1)
    lists = {}
    for direction, (anchors, candidates) in COUNTS.items():
        ids = np.array([rng.permutation(candidates)[:7] for _ in range(anchors)], dtype=np.int32)
        scores = rng.integers(0, 4, size=ids.shape).astype(np.float32)
        lists[direction] = f"{direction}.trec", ids, scores
    return lists


def bare(raw):
    return {direction: (source, ids, None) for direction, (source, ids, _) in raw.items()}


def run(raw, vectors, folder):
    import_lists(raw, IMAGE_OF, vectors, provenance={"dataset": "d"}, output=folder / "table")
    return read_table(folder / "table")


def negatives(direction, raw):
    """Yield each anchor's candidates without own positives, in the order given, with their scores."""
    for anchor, (ids, scores) in enumerate(zip(raw[direction][1].tolist(), raw[direction][2], strict=True)):
        own = [c for c in range(len(IMAGE_OF)) if IMAGE_OF[c] == anchor] if direction == "i2t" else [IMAGE_OF[anchor]]
        yield [(row, score) for row, score in zip(ids, scores, strict=True) if row not in own]


def real(ids):
    return [row for row in ids.tolist() if row >= 0]


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_without_scores_the_order_stays(raw, tmp_path, direction, monkeypatch):
    monkeypatch.setattr(bare_lists, "BLOCK_LISTS", 4)
    table = run(bare(raw), None, tmp_path)
    expected = [[row for row, _ in rows] for rows in negatives(direction, raw)]
    assert [real(ids) for ids in table[direction].negative_ids] == expected
    assert np.isnan(table[direction].scores).all()
    about = table.manifest["directions"][direction]
    assert about["own_positives_left_out"] == raw[direction][1].size - sum(map(len, expected)) > 0
    assert (about["guarantee"], about["scores"], about["h"]) == ("imported", "none", 7)
    assert audit(tmp_path / "table") == []


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_scores_of_the_source_order_the_lists(raw, tmp_path, direction):
    table = run(raw, None, tmp_path)
    expected = [sorted(rows, key=lambda entry: (-entry[1], entry[0])) for rows in negatives(direction, raw)]
    assert [real(ids) for ids in table[direction].negative_ids] == [[row for row, _ in rows] for rows in expected]
    found = [scores[np.isfinite(scores)].tolist() for scores in table[direction].scores]
    assert found == [[score for _, score in rows] for rows in expected]
    assert table.manifest["directions"][direction]["scores"] == "source"
    assert audit(tmp_path / "table") == []


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_vectors_score_every_pair_and_order_the_lists(raw, vectors, tmp_path, direction):
    table = run(raw, vectors, tmp_path)
    both = vectors["images"] @ vectors["captions"].T  # of small integers: exact
    products = both if direction == "i2t" else both.T
    for anchor, rows in enumerate(negatives(direction, raw)):
        expected = sorted((row for row, _ in rows), key=lambda row: (-products[anchor, row], row))
        assert real(table[direction].negative_ids[anchor]) == expected
        assert table[direction].scores[anchor][: len(rows)].tolist() == products[anchor, expected].tolist()
    own = both[IMAGE_OF, np.arange(len(IMAGE_OF))]
    lowest = own.reshape(IMAGES, EACH).min(axis=1) if direction == "i2t" else own
    assert table[direction].positive_score.tolist() == lowest.tolist()
    assert audit(tmp_path / "table") == []


def test_vectors_of_other_data_are_refused(raw, vectors, tmp_path):
    vectors["captions"] = vectors["captions"][:5]
    with pytest.raises(ValueError, match=r"vectors of 9 images and 5 captions, and lists for 9 and 18"):
        run(raw, vectors, tmp_path)
