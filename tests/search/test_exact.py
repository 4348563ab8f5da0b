"""Exact lists against their definition in loops: any duplicates, any block size, any thread count."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aoq.pipeline.search.exact import exact_heads, lowest_positives
from aoq.pipeline.search.positives import Positives
from aoq.pipeline.search.problem import Problem, Side


def slow_negatives(anchors, candidates, own, h):
    """Every candidate that is no positive, by the exact dot product rounded to float32, then by id."""
    ids, scores, lowest = [], [], []
    for anchor, positives in zip(anchors.tolist(), own, strict=True):
        ranked = []
        for number, candidate in enumerate(candidates.tolist()):
            exact = sum((Fraction(a) * Fraction(b) for a, b in zip(anchor, candidate, strict=True)), Fraction(0))
            ranked.append((np.float32(float(exact)), number))
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
