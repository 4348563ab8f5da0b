"""Dot products of float32 vectors, exact and rounded once.

A product of two float32 numbers is exact in float64, so only the summation rounds. A fast sum comes first. If its error
bound leaves two float32 numbers to choose from, the sum is repeated exactly. So a score depends on its two vectors
alone, not on the machine nor on the scores computed with it.
"""

from __future__ import annotations

import math
from typing import Any, no_type_check

import numpy as np
from jaxtyping import Float32, Float64, Integer
from numba import njit

from aoq.pipeline.search.threads import in_parallel


def exact_scores(
    anchors: Float32[np.ndarray, "anchors D"],
    candidates: Float32[np.ndarray, "candidates D"],
    offsets: Integer[np.ndarray, " anchors_and_one"],
    ids: Integer[np.ndarray, " pairs"],
) -> Float32[np.ndarray, " pairs"]:
    """Compute <anchor n, candidate> for the candidates `ids[offsets[n]:offsets[n + 1]]`, correctly rounded to float32.

    >>> one, two = np.float32([[1, 2**-30]]), np.float32([[1, 0], [1, 1]])
    >>> exact_scores(one, two, np.array([0, 2]), np.array([0, 1])).tolist()
    [1.0, 1.0]
    """
    lows, highs = np.empty(len(ids), np.float32), np.empty(len(ids), np.float32)
    in_parallel(_bound_sums, len(anchors), anchors, candidates, offsets, ids, lows, highs)
    for pair in np.flatnonzero(lows != highs):
        anchor = anchors[np.searchsorted(offsets, pair, side="right") - 1]
        lows[pair] = _sum_exactly(anchor.astype(np.float64) * candidates[ids[pair]].astype(np.float64))
    return lows + np.float32(0)  # -0 becomes 0


def _sum_exactly(terms: Float64[np.ndarray, " D"]) -> float:
    """Sum the terms, rounded to odd, so that rounding the sum again, to float32, equals rounding once."""
    total = math.fsum(terms)
    rest = math.fsum([*terms, -total])
    if rest and np.float64(total).view(np.int64) % 2 == 0:
        return math.nextafter(total, math.copysign(math.inf, rest))
    return total


@njit(nogil=True, cache=True)
@no_type_check
def _bound_sums(
    start: int, stop: int, anchors: Any, candidates: Any, offsets: Any, ids: Any, lows: Any, highs: Any
) -> None:
    """Bound each dot product: the float64 sum less and plus its largest error."""
    for row in range(start, stop):
        anchor = anchors[row]
        for pair in range(offsets[row], offsets[row + 1]):
            total, size = _sum_products(anchor, candidates[ids[pair]])
            error = size * (len(anchor) + 1) * 2.0**-52
            lows[pair], highs[pair] = np.float32(total - error), np.float32(total + error)


@njit(nogil=True, cache=True, fastmath={"reassoc", "contract"})
@no_type_check
def _sum_products(one: Any, other: Any) -> Any:
    """Sum all products, and their absolute values, in the fastest order."""
    total = size = 0.0
    for k in range(len(one)):
        product = np.float64(one[k]) * np.float64(other[k])
        total += product
        size += abs(product)
    return total, size
