"""Dot products of float32 vectors, exact and rounded once.

A product of two float32 numbers is exact in float64, so only the summation rounds. A fast sum comes first. If its error
bound leaves two float32 numbers to choose from, the sum is repeated exactly. So a score depends on its two vectors
alone, not on the machine nor on the scores computed with it.
"""

from __future__ import annotations

from typing import Any, no_type_check

import numpy as np
from jaxtyping import Float32, Integer
from numba import njit

from aoq.pipeline.search.plain_scores import sum_exactly
from aoq.pipeline.search.threads import in_parallel

PART = 256
"""Products that are summed in any order; the shorter the parts, the smaller the error."""


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
    scores = np.empty(len(ids), np.float32)
    in_parallel(_score_rows, len(anchors), read_only(anchors), read_only(candidates), offsets, ids, scores)
    for pair in np.flatnonzero(np.isnan(scores)):
        scores[pair] = sum_exactly(anchors[np.searchsorted(offsets, pair, side="right") - 1], candidates[ids[pair]])
    return scores


def read_only(vectors: Float32[np.ndarray, "items D"]) -> Float32[np.ndarray, "items D"]:
    """View the vectors as mapped files are viewed: kernels are compiled anew for writable ones."""
    view = vectors.view()
    view.flags.writeable = False
    return view


@njit(nogil=True, cache=True)
@no_type_check
def score_between(one: Any, other: Any, size: float) -> Any:
    """Bound the dot product, rounded to float32; `size` is at least the sum of the products' absolute values.

    From the float64 sum less its largest error to the sum plus it. -0 becomes 0. Added up part by part, the sum is off
    by (PART + D / PART) 2**-53 of `size` at most; the error here is twice that.
    """
    total = 0.0
    for start in range(0, len(other), PART):
        total += _sum_products(one[start : start + PART], other[start : start + PART])
    error = size * (PART + len(other) // PART + 2) * 2.0**-52
    return np.float32(total - error) + np.float32(0), np.float32(total + error) + np.float32(0)


@njit(nogil=True, cache=True)
@no_type_check
def _score_rows(start: int, stop: int, anchors: Any, candidates: Any, offsets: Any, ids: Any, scores: Any) -> None:
    """Write the scores of these rows; NaN where only an exact sum decides."""
    for row in range(start, stop):
        norm = norm_of(anchors[row])
        for pair in range(offsets[row], offsets[row + 1]):
            candidate = candidates[ids[pair]]
            low, high = score_between(anchors[row], candidate, norm * norm_of(candidate))
            scores[pair] = low if low == high else np.nan


@njit(nogil=True, cache=True, fastmath={"reassoc", "contract"})
@no_type_check
def norm_of(vector: Any) -> Any:
    """Bound the norm from above, by less than one part in a million."""
    square = 0.0
    for k in range(len(vector)):
        square += np.float64(vector[k]) * np.float64(vector[k])
    return np.sqrt(square) * (1 + len(vector) * 2.0**-52)


@njit(nogil=True, cache=True, fastmath={"reassoc", "contract"})
@no_type_check
def _sum_products(one: Any, other: Any) -> Any:
    """Sum the products in the fastest order."""
    total = 0.0
    for k in range(len(other)):
        total += np.float64(one[k]) * np.float64(other[k])
    return total
