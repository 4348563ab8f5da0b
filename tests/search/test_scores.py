"""Scores against the exact sum of exact products, rounded once."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba.core.caching import CompileResultCacheImpl

from aoq.pipeline.extras import compiled
from aoq.pipeline.search.scores import exact_scores, sum_exactly


def rounded(fraction: Fraction) -> np.float32:
    """The float32 number nearest to a fraction, of two equally near the even one."""
    near = np.float32(float(fraction))
    choices = [np.nextafter(near, np.float32(-np.inf)), near, np.nextafter(near, np.float32(np.inf))]
    distance = {float(choice): abs(Fraction(float(choice)) - fraction) for choice in choices}
    least = min(distance.values())
    best = [choice for choice in choices if distance[float(choice)] == least]
    return best[0] if len(best) == 1 else next(choice for choice in best if int(choice.view(np.uint32)) % 2 == 0)


def all_pairs(anchors, candidates):
    offsets = np.arange(len(anchors) + 1) * len(candidates)
    ids = np.tile(np.arange(len(candidates), dtype=np.int32), len(anchors))
    return exact_scores(anchors, candidates, offsets, ids).reshape(len(anchors), len(candidates))


def check(vectors):
    """The last two vectors nearly cancel; every score is the exact product, rounded once."""
    vectors[-1] = -vectors[-2]
    vectors[-1, -1] *= np.float32(1 + 2**-23)
    found, rows = all_pairs(vectors, vectors), vectors.tolist()
    for row, one in enumerate(rows):
        for column, other in enumerate(rows):
            products = (Fraction(a) * Fraction(b) for a, b in zip(one, other, strict=True))
            assert found[row, column] == rounded(sum(products, Fraction(0)))


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), size=st.integers(1, 70), spread=st.sampled_from([0, 3, 20]))
def test_a_score_is_the_exact_product_rounded_once(seed, size, spread):
    """It holds where the sum cancels, and where terms differ by many magnitudes."""
    rng = np.random.default_rng(seed)
    check((rng.normal(size=(4, size)) * 2.0 ** rng.integers(-spread, spread + 1, (4, size))).astype(np.float32))


@pytest.mark.parametrize("size", [257, 2048])
def test_long_vectors_are_added_up_part_by_part(size):
    """Their last products, after the last whole part, decide."""
    check(np.random.default_rng(size).normal(size=(3, size)).astype(np.float32))


def test_halfway_between_two_numbers_it_is_added_up_exactly():
    """1 + 2**-24 lies halfway between two float32 numbers; 2**-60 decides, and float64 does not see it."""
    anchors = np.float32([[1, 2**-24, 2**-60], [1, 2**-24, -(2**-60)], [1, 2**-24, 0]])
    found = all_pairs(anchors, np.ones((1, 3), dtype=np.float32))[:, 0]
    assert found.tolist() == [1 + 2**-23, 1, 1]
    assert [sum_exactly(anchor, np.float32([1, 1, 1])) for anchor in anchors] == [1 + 2**-23, 1, 1]
    assert not np.signbit(all_pairs(np.float32([[0.0, -0.0]]), np.float32([[-1, 1], [1, 1]]))).any()


def test_code_is_compiled_without_a_folder_to_keep_it(monkeypatch, caplog):
    monkeypatch.setattr(CompileResultCacheImpl, "_locator_classes", [])  # root can write any folder
    assert compiled()(lambda number: number + 1)(2) == 3
    assert "set NUMBA_CACHE_DIR to a writable folder" in caplog.text
