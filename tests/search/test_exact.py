"""Exact lists against their definition in loops: any duplicates, any block size, any thread count."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aoq.pipeline.search import exact
from aoq.pipeline.search.exact import certify, exact_heads, lowest_positives
from aoq.pipeline.search.positives import Positives
from aoq.pipeline.search.problem import Problem, Side
from aoq.pipeline.search.proposals import Heads


def slow_negatives(anchors, candidates, own, h):
    """Every candidate that is no positive, by the exact dot product rounded to float32, then by id."""
    ids, scores, lowest = [], [], []
    for anchor, positives in zip(anchors.tolist(), own, strict=True):
        ranked = []
        for number, candidate in enumerate(candidates.tolist()):
            score = sum((Fraction(a) * Fraction(b) for a, b in zip(anchor, candidate, strict=True)), Fraction(0))
            ranked.append((np.float32(float(score)), number))
        lowest.append(min((ranked[p][0] for p in positives), default=np.float32(np.nan)))
        rest = sorted((-score, number) for score, number in ranked if number not in positives)
        ids.append([number for _, number in rest[:h]])
        scores.append([-score for score, _ in rest[:h]])
    return np.array(ids), np.array(scores, dtype=np.float32), np.array(lowest, dtype=np.float32)


def side_of(anchors, candidates, own, h, **options):
    offsets = np.concatenate([[0], np.cumsum([len(positives) for positives in own])]).astype(np.int64)
    longest = float(np.linalg.norm(anchors, axis=1).max() * np.linalg.norm(candidates, axis=1).max()) * 1.001
    return Side(anchors, candidates, Positives(np.concatenate(own).astype(np.int32), offsets), h, longest, **options)


def check(anchors, candidates, own, h, **options):
    side = side_of(anchors, candidates, own, h, **options)
    found = exact_heads(side)
    slow_ids, slow_scores, slow_lowest = slow_negatives(anchors, candidates, own, h)
    np.testing.assert_array_equal(found.ids, slow_ids)
    np.testing.assert_array_equal(found.scores, slow_scores)
    np.testing.assert_array_equal(lowest_positives(side), slow_lowest)
    assert found.certified.all()


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), kinds=st.integers(1, 12), candidates=st.integers(8, 90), h=st.integers(1, 5))
def test_equals_the_definition_with_duplicated_vectors(seed, kinds, candidates, h):
    """Few distinct vectors stand many times, so nearly everything is a tie that ids must break."""
    rng = np.random.default_rng(seed)
    distinct = rng.normal(size=(kinds, 6)).astype(np.float32)
    vectors = distinct[rng.integers(0, kinds, candidates)]
    anchors = distinct[rng.integers(0, kinds, 5)]
    own = [rng.choice(candidates, rng.integers(0, 4), replace=False) for _ in range(5)]
    check(anchors, vectors, own, h)


@pytest.mark.parametrize("memory", [1, 30_000, 10**9])
def test_a_tie_wider_than_the_first_search_is_searched_deeper(memory):
    """Two hundred copies of the best candidate: the first proposal sees only some of them."""
    rng = np.random.default_rng(3)
    vectors = rng.normal(size=(400, 8)).astype(np.float32)
    vectors[100:300] = vectors[0] * 3
    check(np.stack([vectors[0], -vectors[0]]), vectors, [[0], [1]], 10, memory=memory)


@pytest.mark.parametrize("few", [0, 10**9])
def test_rows_that_are_not_certified_are_searched_again(monkeypatch, few):
    """A few by scoring all candidates, many by a deeper search; certified rows stay as they are."""
    monkeypatch.setattr(exact, "FEW", few)
    rng = np.random.default_rng(0)
    candidates = rng.normal(size=(8, 6)).astype(np.float32)[rng.integers(0, 8, 60)]
    side = side_of(candidates[:4], candidates, [[0], [1, 5], [], [3]], 4)
    wrong = Heads(np.full((4, 4), 7, np.int32), np.zeros((4, 4), np.float32), np.float32([1, 0, 0, -1]))
    found = certify(wrong, side)
    ids, scores, _ = slow_negatives(side.anchors, candidates, [[0], [1, 5], [], [3]], 4)
    np.testing.assert_array_equal(found.ids[:3], ids[:3])
    np.testing.assert_array_equal(found.scores[:3], scores[:3])
    assert found.certified.all()
    assert (found.ids[3] == 7).all()


def test_the_candidates_may_all_be_needed():
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(7, 3)).astype(np.float32)
    check(vectors[:2], vectors, [[0, 1], [1]], 5)


def test_more_negatives_than_candidates_is_refused():
    vectors, image_of = np.eye(6, dtype=np.float32), np.array([0, 0, 1, 2, 3, 4], dtype=np.int32)
    message = r"h=5 needs at least 7 candidates .* lower h_captions to at most 4"
    with pytest.raises(ValueError, match=message):
        Problem(vectors, vectors, image_of, h_captions=5, h_images=1)
    with pytest.raises(ValueError, match=r"lower h_images to at most 5"):
        Problem(vectors, vectors, image_of, h_captions=1, h_images=6)
