"""Exact scores: the dot product of two float32 vectors as a real number, rounded once to float32. -0 becomes 0.

A product of two float32 numbers is exact in float64, so only the summation rounds. A fast sum comes first, in any
order. If its error bound leaves two float32 numbers to choose from, the sum is repeated with compensation, and if that
does not decide either, in exact arithmetic. So a score depends on its two vectors alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, no_type_check

import numpy as np
import torch
from jaxtyping import Float32, Float64, Int64, Integer
from torch import Tensor

from aoq.pipeline.engine import in_parallel
from aoq.pipeline.extras import compiled
from aoq.pipeline.search.problem import READ_ROWS, blocks


def exact_scores(
    anchors: Float32[np.ndarray, "anchors D"],
    candidates: Float32[np.ndarray, "candidates D"],
    offsets: Integer[np.ndarray, " anchors_and_one"],
    ids: Integer[np.ndarray, " pairs"],
) -> Float32[np.ndarray, " pairs"]:
    """Score anchor n with the candidates `ids[offsets[n]:offsets[n + 1]]`.

    >>> one, two = np.float32([[1, 2**-30]]), np.float32([[1, 0], [1, 1]])
    >>> exact_scores(one, two, np.array([0, 2]), np.array([0, 1])).tolist()
    [1.0, 1.0]
    """
    longest = max((float(norm_bounds(candidates[ids[a:b]]).max()) for a, b in blocks(len(ids), READ_ROWS)), default=0.0)
    rows = np.repeat(np.arange(len(anchors)), np.diff(offsets))
    norms = norm_bounds(anchors), np.broadcast_to(longest, len(candidates))
    return score_pairs(anchors, candidates, norms, (rows, ids.astype(np.int64, copy=False)))


def norm_bounds(vectors: Float32[np.ndarray, "items D"]) -> Float64[np.ndarray, " items"]:
    """Return upper bounds of the norms, within 1e-6 relative."""
    return np.sqrt(np.einsum("nd,nd->n", vectors, vectors, dtype=np.float64)) * (1 + 2.0**-20)


def score_pairs(
    ones: Float32[np.ndarray, "ones D"],
    others: Float32[np.ndarray, "others D"],
    norms: Sequence[Float64[np.ndarray, " _"]],
    pairs: Sequence[Integer[np.ndarray, " pairs"]],
) -> Float32[np.ndarray, " pairs"]:
    """Score `ones[pairs[0]]` with `others[pairs[1]]`; `norms` are upper bounds of the norms of both sides."""
    scores = np.empty(len(pairs[0]), np.float32)
    in_parallel(_write_scores, len(scores), *map(_read_only, (ones, others, *norms, *pairs)), scores)
    for pair in np.flatnonzero(np.isnan(scores)):
        scores[pair] = sum_exactly(ones[pairs[0][pair]], others[pairs[1][pair]])
    return scores


def sum_in_float64(
    vectors: Sequence[Float32[Tensor, "_ D"]],
    norms: Sequence[Float64[Tensor, " _"]],
    pairs: Sequence[Int64[Tensor, " pairs"]],
) -> Float32[Tensor, " pairs"]:
    """Score pairs with torch alone, on any device; NaN where a float64 sum does not decide the rounding."""
    (ones, others), scores = vectors, [norms[0].new_empty(0, dtype=torch.float32)]
    for rows, columns in zip(*(each.split(max(1, 2**25 // ones.shape[1])) for each in pairs), strict=True):
        totals = (ones[rows].double() * others[columns]).sum(1)
        errors = norms[0][rows] * norms[1][columns] * (ones.shape[1] + 1) * 2.0**-52
        lows, highs = (totals - errors).float(), (totals + errors).float()
        scores.append(torch.where(lows == highs, lows + 0.0, torch.nan))
    return torch.cat(scores)


def sum_exactly(one: Float32[np.ndarray, " D"], other: Float32[np.ndarray, " D"]) -> np.float32:
    """Sum the products exactly and round once. The intermediate float64 is rounded to odd against double rounding."""
    terms = one.astype(np.float64) * other.astype(np.float64)
    total = math.fsum(terms)
    rest = math.fsum([*terms, -total])
    if rest and np.float64(total).view(np.int64) % 2 == 0:
        total = math.nextafter(total, math.copysign(math.inf, rest))
    return np.float32(total) + np.float32(0)


def _read_only(array: np.ndarray) -> np.ndarray:
    """Return a read-only view, like that of a mapped file: numba compiles kernels separately for writable arrays."""
    view = array.view()
    view.flags.writeable = False
    return view


@compiled()
@no_type_check
def _write_scores(
    start: int, stop: int, ones: Any, others: Any, norms: Any, other_norms: Any, rows: Any, columns: Any, scores: Any
) -> None:
    """Write the scores of these pairs; NaN if only exact arithmetic decides."""
    each = (ones.shape[1] + 1) * 2.0**-52  # twice what a sum of float64 products can lose, in any order
    one, converted = np.empty(ones.shape[1]), -1
    for pair in range(start, stop):
        if rows[pair] != converted:  # pairs of one row mostly follow each other
            converted = rows[pair]
            one[:] = ones[converted]
        other = others[columns[pair]]
        total = _fast_sum(one, other)
        error = norms[rows[pair]] * other_norms[columns[pair]] * each
        low, high = np.float32(total - error), np.float32(total + error)
        scores[pair] = (low if low == high else _careful_sum(one, other)) + np.float32(0)


@compiled(fastmath={"reassoc", "contract", "nsz"})
@no_type_check
def _fast_sum(one: Any, other: Any) -> Any:
    total = 0.0
    for k in range(len(other)):
        total += one[k] * np.float64(other[k])
    return total


@compiled()
@no_type_check
def _careful_sum(one: Any, other: Any) -> Any:
    """Sum with compensation (Neumaier 1974); NaN if the remaining error leaves two float32 numbers."""
    total = rest = lost = 0.0
    for k in range(len(other)):
        term = one[k] * np.float64(other[k])
        after = total + term
        part = (total - after) + term if abs(total) >= abs(term) else (term - after) + total
        total, rest, lost = after, rest + part, lost + abs(part)
    error = lost * len(other) * 2.0**-52
    low, high = _round_sum(total, rest - error), _round_sum(total, rest + error)
    return low if low == high else np.float32(np.nan)


@compiled()
@no_type_check
def _round_sum(total: float, rest: float) -> Any:
    """Round total + rest to float32 once, through a float64 that is rounded to odd."""
    whole = total + rest
    part = (total - whole) + rest if abs(total) >= abs(rest) else (rest - whole) + total
    if part != 0.0:
        bits = np.array([whole]).view(np.int64)
        if bits[0] % 2 == 0:
            whole = np.nextafter(whole, np.inf if part > 0 else -np.inf)
    return np.float32(whole)
