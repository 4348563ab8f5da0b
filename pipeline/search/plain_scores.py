"""Dot products of float32 vectors, exact and rounded once (`scores.py`), by numpy alone: nothing is compiled."""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float32, Float64, Integer

from aoq.pipeline.search.problem import blocks
from aoq.pipeline.search.threads import in_parallel

FEW = 16
"""Pairs of an anchor, on average, of which it takes more to go through the anchors one by one."""
TOGETHER = 2**18
"""Numbers of vectors that are gathered together: they fit into a second-level cache."""


def plain_scores(
    anchors: Float32[np.ndarray, "anchors D"],
    candidates: Float32[np.ndarray, "candidates D"],
    offsets: Integer[np.ndarray, " anchors_and_one"],
    ids: Integer[np.ndarray, " pairs"],
    longest: float,
) -> Float32[np.ndarray, " pairs"]:
    """Compute what `exact_scores` computes; `longest` bounds an anchor's norm times a candidate's.

    >>> one, two = np.float32([[1, 2**-30]]), np.float32([[1, 0], [1, 1]])
    >>> plain_scores(one, two, np.array([0, 2]), np.array([0, 1]), 2.0).tolist()
    [1.0, 1.0]
    """
    scores = np.empty(len(ids), np.float32)
    given = np.asarray(anchors), np.asarray(candidates)  # a mapped array's rows would be mapped arrays too
    if len(ids) < FEW * len(anchors):
        rows = np.repeat(np.arange(len(anchors)), np.diff(offsets))
        in_parallel(_score_pairs, len(ids), *given, rows, ids, longest, scores)
    else:
        in_parallel(_score_rows, len(anchors), *given, offsets, ids, longest, scores)
    return scores


def _score_pairs(
    start: int,
    stop: int,
    anchors: np.ndarray,
    candidates: np.ndarray,
    rows: np.ndarray,
    ids: np.ndarray,
    longest: float,
    scores: np.ndarray,
) -> None:
    for begin, end in blocks(stop - start, max(1, TOGETHER // candidates.shape[1])):
        here = slice(start + begin, start + end)
        ones, others = anchors[rows[here]].astype(np.float64), candidates[ids[here]].astype(np.float64)
        scores[here] = _settled(np.einsum("nd,nd->n", ones, others), ones, others, longest)


def _score_rows(
    start: int,
    stop: int,
    anchors: np.ndarray,
    candidates: np.ndarray,
    offsets: np.ndarray,
    ids: np.ndarray,
    longest: float,
    scores: np.ndarray,
) -> None:
    together = max(1, TOGETHER // candidates.shape[1])
    for row in range(start, stop):
        first, anchor = int(offsets[row]), anchors[row].astype(np.float64)
        for begin, end in blocks(int(offsets[row + 1]) - first, together):
            here = slice(first + begin, first + end)
            others = candidates[ids[here]].astype(np.float64)
            scores[here] = _settled(others @ anchor, np.broadcast_to(anchor, others.shape), others, longest)


def _settled(
    totals: Float64[np.ndarray, " some"],
    ones: Float64[np.ndarray, "some D"],
    others: Float64[np.ndarray, "some D"],
    longest: float,
) -> Float32[np.ndarray, " some"]:
    """Round the float64 sums; where their error leaves two numbers to choose from, bound it closer, then add exactly.

    By Cauchy and Schwarz the absolute products add up to two norms' product at most.
    """
    each = (others.shape[1] + 1) * 2.0**-52
    scores, is_open = _rounded(totals, longest * each)
    rows = is_open.nonzero()[0]
    if len(rows):
        scores[rows], is_open = _rounded(totals[rows], np.abs(ones[rows] * others[rows]).sum(axis=1) * each)
        for row in rows[is_open]:
            scores[row] = sum_exactly(ones[row], others[row])
    return scores


def _rounded(totals: np.ndarray, errors: np.ndarray | float) -> tuple[np.ndarray, np.ndarray]:
    """Round to float32, -0 to 0, and tell where the errors allow another number."""
    low, high = (totals - errors).astype(np.float32), (totals + errors).astype(np.float32)
    return low + np.float32(0), low != high


def sum_exactly(one: np.ndarray, other: np.ndarray) -> np.float32:
    """Sum the products exactly and round once, by way of a float64 that is rounded to odd. -0 becomes 0."""
    terms = one.astype(np.float64) * other.astype(np.float64)
    total = math.fsum(terms)
    rest = math.fsum([*terms, -total])
    if rest and np.float64(total).view(np.int64) % 2 == 0:
        total = math.nextafter(total, math.copysign(math.inf, rest))
    return np.float32(total) + np.float32(0)
