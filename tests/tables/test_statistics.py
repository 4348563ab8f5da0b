"""Figures of tables, against their definitions in loops."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aoq.pipeline.search.lists import NegativeLists
from aoq.pipeline.tables.statistics import MARGINS, PERSISTENCE, QUANTILES, compare, describe, recommended_margin
from aoq.pipeline.tables.table import NegativeTable


def lists_of(ids, scores=None, positive=None):
    ids = np.array(ids, dtype=np.int32)
    scores = np.where(ids < 0, np.nan, -np.arange(ids.shape[1])) if scores is None else np.array(scores)
    positive = np.zeros(len(ids)) if positive is None else np.array(positive)
    return NegativeLists(ids, scores.astype(np.float32), positive.astype(np.float32))


def draw(rng, anchors, h, candidates):
    ids = np.stack([rng.permutation(candidates)[:h] for _ in range(anchors)])
    for row, length in enumerate(rng.integers(0, h + 1, anchors)):
        ids[row, length:] = -1
    return ids


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 10_000), h=st.integers(1, 8), other_h=st.integers(1, 8))
def test_differences_equal_the_definition(seed, h, other_h):
    rng = np.random.default_rng(seed)
    one, other = draw(rng, 6, h, 9), draw(rng, 6, other_h, 9)
    one[0], other[0] = -1, -1
    depth = min(h, other_h)
    tables = [NegativeTable(lists_of(ids), lists_of(ids), {}) for ids in (one, other)]
    found = compare(*tables)["i2t"]
    overlaps, biased, same = [], [], []
    for a, b in zip(one[:, :depth].tolist(), other[:, :depth].tolist(), strict=True):
        shared = [len((set(a[:d]) & set(b[:d])) - {-1}) for d in range(1, depth + 1)]
        longest = max(len(set(a) - {-1}), len(set(b) - {-1}))
        overlaps.append(shared[-1] / longest if longest else 1)
        weights = [PERSISTENCE**d / (d + 1) for d in range(depth)]
        equal = sum(w * min(d, longest) for d, w in enumerate(weights, start=1))
        biased.append(sum(map(math.prod, zip(weights, shared, strict=True))) / equal if longest else 1)
        same.append(a == b)
    assert found.overlap == pytest.approx(np.mean(overlaps))
    assert found.rank_biased_overlap == pytest.approx(np.mean(biased))
    assert found.same_order == pytest.approx(np.mean(same))
    ranked = sorted(range(6), key=lambda row: (overlaps[row], row))[:5]
    assert found.most_changed == [(row, pytest.approx(overlaps[row])) for row in ranked]


def test_tables_of_different_data_or_too_deep_are_refused():
    two, three = lists_of([[1], [0]]), lists_of([[1], [0], [2]])
    with pytest.raises(ValueError, match="2 and 3 i2t lists; compare tables of one data set"):
        compare(NegativeTable(two, two, {}), NegativeTable(three, three, {}))
    for depth in (0, 2):
        with pytest.raises(ValueError, match=f"depth is {depth}, but the shorter i2t lists have 1; choose 1 to 1"):
            compare(*[NegativeTable(two, two, {})] * 2, depth=depth)


def test_a_description_is_what_one_would_count():
    ids = [[4, 2, 0], [4, 0, -1], [4, 1, 2]]
    scores = [[0.9, 0.5, 0.4], [0.8, 0.7, np.nan], [0.3, 0.2, 0.1]]
    found = describe(lists_of(ids, scores, [0.5, 0.9, np.nan]), candidates=6, hubs=2)
    assert (found.anchors, found.h, found.full) == (3, 3, pytest.approx(2 / 3))
    assert found.first_score == pytest.approx(np.quantile(np.float32([0.9, 0.8, 0.3]), QUANTILES), abs=1e-6)
    assert found.last_score == pytest.approx(np.quantile(np.float32([0.4, 0.1]), QUANTILES), abs=1e-6)
    assert found.positive_rank == pytest.approx(np.quantile([3, 1], QUANTILES), abs=1e-6)
    assert found.above_positive == pytest.approx(2 / 5)
    assert found.never_listed == pytest.approx(2 / 6)
    assert found.most_listed == [(4, 3), (0, 2)]


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), h=st.integers(1, 40))
def test_what_margins_keep_by_rank_equals_the_definition(seed, h):
    rng = np.random.default_rng(seed)
    ids = draw(rng, 5, h, 50)
    scores = np.where(ids < 0, np.nan, -np.sort(-rng.uniform(-1, 1, ids.shape)))
    positive = np.where(rng.random(5) < 0.3, np.nan, rng.uniform(-1, 1, 5)).astype(np.float32)
    lists = lists_of(ids, scores, positive)
    for margin, kept in describe(lists, 50).kept_by_margin.get("lowest", {}).items():
        expected = []
        for start, end in ((0, 10), (10, 30), (30, 100)):
            pairs = [(row, rank) for row in range(5) for rank in range(start, min(end, h))]
            listed = [(r, k) for r, k in pairs if ids[r, k] >= 0 and np.isfinite(positive[r])]
            fine = [lists.scores[r, k] <= positive[r] - margin * abs(positive[r]) + 1e-9 for r, k in listed]
            expected += [np.mean(fine)] if listed else []
        assert kept == pytest.approx(expected, abs=1e-6)


EVEN, LITTLE, MORE = (0.9, 0.8, 0.6, 0.4, 0.2, 0.1), (0.6, 0.3, 0.05, 0.0, 0.0, 0.0), (0.9, 0.9, 0.7, 0.5, 0.3, 0.1)
NEARLY_ALL, NEARLY_NONE = (1.0, 1.0, 1.0, 0.98, 0.5, 0.2), (1.0, 0.05, 0.0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("lowest", "mean", "chosen", "said"),
    [
        (EVEN, None, ("lowest", 0.05), "a limit of 95% of the lowest positive's score keeps 60%"),
        (LITTLE, None, ("lowest", 0.02), "rejects nearly everything in the first ranks; a limit"),
        (LITTLE, MORE, ("mean", 0.05), "of the mean positive's score"),
        (NEARLY_ALL, None, ("lowest", 0.1), "rejects nothing in the first ranks; a limit of 90%"),
        (NEARLY_NONE, None, ("lowest", None), "no percentage here keeps between 10% and 99% of them"),
        (None, EVEN, ("mean", 0.05), "keeps 60% in the first ranks and 100% in the last"),
    ],
)
def test_a_percentage_that_rejects_nearly_everything_or_nothing_is_said(lowest, mean, chosen, said):
    heads = {name: head for name, head in (("lowest", lowest), ("mean", mean)) if head}
    kept = {name: {m: [share, 1.0] for m, share in zip(MARGINS, head, strict=True)} for name, head in heads.items()}
    name, margin, why = recommended_margin(kept)
    assert (name, margin) == chosen
    assert said in why
