"""Exact lists against their definition in loops: any duplicates, any block size, any thread count."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.mining.exact import Positives, exact_negatives
from pipeline.mining.search import SEARCHES


def slow_negatives(anchors, candidates, own, h):
    """Every candidate that is no positive, by float64 dot product rounded to float32, then by id."""
    ids, scores, lowest = [], [], []
    for anchor, positives in zip(anchors, own, strict=True):
        ranked = []
        for candidate in range(len(candidates)):
            products = anchor.astype(np.float64) * candidates[candidate].astype(np.float64)
            ranked.append((np.float32(products.sum()), candidate))
        lowest.append(min(ranked[p][0] for p in positives))
        rest = sorted((-score, candidate) for score, candidate in ranked if candidate not in positives)
        ids.append([candidate for _, candidate in rest[:h]])
        scores.append([-score for score, _ in rest[:h]])
    return np.array(ids), np.array(scores, dtype=np.float32), np.array(lowest, dtype=np.float32)


def positives_of(own):
    offsets = np.concatenate([[0], np.cumsum([len(positives) for positives in own])]).astype(np.int64)
    return Positives(np.concatenate(own).astype(np.int32), offsets)


def check(anchors, candidates, own, h, search="faiss-flat"):
    ids, scores, lowest = exact_negatives(anchors, candidates, positives_of(own), h=h, search=SEARCHES[search])
    slow_ids, slow_scores, slow_lowest = slow_negatives(anchors, candidates, own, h)
    np.testing.assert_array_equal(ids, slow_ids)
    np.testing.assert_array_equal(scores, slow_scores)
    np.testing.assert_array_equal(lowest, slow_lowest)


@pytest.mark.parametrize("search", SEARCHES)
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), kinds=st.integers(1, 12), candidates=st.integers(8, 90), h=st.integers(1, 5))
def test_equals_the_definition_with_duplicated_vectors(search, seed, kinds, candidates, h):
    """Few distinct vectors stand many times, so nearly everything is a tie that ids must break."""
    rng = np.random.default_rng(seed)
    distinct = rng.normal(size=(kinds, 6)).astype(np.float32)
    vectors = distinct[rng.integers(0, kinds, candidates)]
    anchors = distinct[rng.integers(0, kinds, 5)]
    own = [rng.choice(candidates, rng.integers(1, 4), replace=False) for _ in range(5)]
    check(anchors, vectors, own, h, search)


@pytest.mark.parametrize("search", SEARCHES)
def test_a_tie_wider_than_the_first_search_is_searched_deeper(search):
    """Two hundred copies of the best candidate: the first proposal sees only some of them."""
    rng = np.random.default_rng(3)
    vectors = rng.normal(size=(400, 8)).astype(np.float32)
    vectors[100:300] = vectors[0] * 3
    check(np.stack([vectors[0], -vectors[0]]), vectors, [[0], [1]], 10, search)


def test_the_candidates_may_all_be_needed():
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(7, 3)).astype(np.float32)
    check(vectors[:2], vectors, [[0, 1], [1]], 5)


def test_more_negatives_than_candidates_is_refused():
    vectors = np.eye(6, dtype=np.float32)
    with pytest.raises(ValueError, match=r"h=5 needs at least 7 candidates .* lower `h` to at most 4"):
        exact_negatives(vectors, vectors, positives_of([[0, 1]] * 6), h=5, search=SEARCHES["faiss-flat"])


def test_missing_faiss_names_the_two_extras(monkeypatch):
    from pipeline.mining.search import faiss_flat

    monkeypatch.setitem(__import__("sys").modules, "faiss", None)
    faiss_flat.load_faiss.cache_clear()
    with pytest.raises(ImportError, match=r"\.\[cpu\].*\.\[gpu\]"):
        faiss_flat.load_faiss()
    faiss_flat.load_faiss.cache_clear()
