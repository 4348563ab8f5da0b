"""Turn near scores of some candidates into the exact head of each anchor's list."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, no_type_check

import numpy as np
from jaxtyping import Bool, Float, Float32, Float64, Int32, Int64, Integer, UInt32
from numba import njit

from aoq.pipeline.search.positives import offsets_of
from aoq.pipeline.search.problem import LAST_BITS, Side, blocks
from aoq.pipeline.search.scores import exact_scores
from aoq.pipeline.search.threads import in_parallel

SORTED = 2**17
"""Keys that are sorted together: they fit into a second-level cache."""
NONE = np.uint64(2**64 - 1)
"""A key behind all others."""


@dataclass(frozen=True)
class Proposals:
    """Candidates with near scores: those of anchor n are `ids[offsets[n]:offsets[n + 1]]`.

    Each score is off by `error` at most. The exact score of any other candidate is at most `unproposed[n]`.
    """

    offsets: Int64[np.ndarray, " anchors_and_one"]
    ids: Integer[np.ndarray, " pairs"]
    scores: Float[np.ndarray, " pairs"]
    unproposed: Float[np.ndarray, " anchors"]
    error: float


@dataclass(frozen=True)
class Heads:
    """The h best negatives of each anchor, score falling, then id rising; `bound` limits the scores of all others.

    A row is certified, and its list proven exact, if its last score is above the bound.
    """

    ids: Int32[np.ndarray, "anchors h"]
    scores: Float32[np.ndarray, "anchors h"]
    bound: Float32[np.ndarray, " anchors"]

    def put(self, rows: Int64[np.ndarray, " some"], part: Heads) -> None:
        """Replace some rows."""
        self.ids[rows], self.scores[rows], self.bound[rows] = part.ids, part.scores, part.bound

    @property
    def certified(self) -> Bool[np.ndarray, " anchors"]:
        return self.scores[:, -1] > self.bound


def heads(side: Side, proposals: Proposals) -> Heads:
    """Rescore exactly all that may be among the h best, and keep the best of these.

    A row with fewer than h negatives proposed is filled with -1 and not certified.
    """
    rows, h = len(side.anchors), side.h
    kept, rest = np.empty(len(proposals.ids), dtype=np.bool_), np.empty(rows)
    proposed = proposals.offsets, proposals.ids, proposals.scores
    own, slack = (side.positives.offsets, side.positives.ids), 2 * proposals.error + LAST_BITS * side.longest
    in_parallel(_choose, rows, proposed, own, h, slack, kept, rest)
    counts = np.concatenate([[0], np.cumsum(kept)])[proposals.offsets]
    ids = proposals.ids[kept]
    scores = exact_scores(side.anchors, side.candidates, counts, ids)
    best, best_scores = np.full((rows, h), -1, np.int32), np.full((rows, h), -np.inf, np.float32)
    none = np.zeros(rows + 1, np.int64), np.empty(0, np.int32)  # positives were left out above
    in_parallel(_best_negatives, rows, counts, ids, scores.view(np.uint32), none, best, best_scores.view(np.uint32))
    return Heads(best, best_scores, _rounded_up(np.maximum(rest + proposals.error, proposals.unproposed)))


def known_heads(
    side: Side,
    offsets: Int64[np.ndarray, " anchors_and_one"],
    ids: Int32[np.ndarray, " pairs"],
    scores: Float32[np.ndarray, " pairs"],
    limits: Float32[np.ndarray, " anchors"],
) -> Heads:
    """Keep the best of candidates whose scores are exact; all others score less than their anchor's limit."""
    rows, h = len(side.anchors), side.h
    best, best_scores = np.full((rows, h), -1, np.int32), np.full((rows, h), -np.inf, np.float32)
    own = side.positives.offsets, side.positives.ids
    in_parallel(_best_negatives, rows, offsets, ids, scores.view(np.uint32), own, best, best_scores.view(np.uint32))
    return Heads(best, best_scores, np.where(limits < np.inf, np.nextafter(limits, np.float32(-np.inf)), limits))


def near_heads(side: Side, ids: Integer[np.ndarray, "anchors k"]) -> Heads:
    """Rescore and sort what was found, with -1 where nothing was; what was not found has no bound."""
    found = ids >= 0
    none_better = np.zeros(found.sum(), dtype=np.float32)  # an index may compress: of what it found, all is scored
    unproposed = np.full(len(ids), np.inf)
    return heads(side, Proposals(offsets_of(found.sum(1)), ids[found], none_better, unproposed, error=0.0))


def _rounded_up(bounds: Float64[np.ndarray, " anchors"]) -> Float32[np.ndarray, " anchors"]:
    near = bounds.astype(np.float32)
    return np.where(near < bounds, np.nextafter(near, np.float32(np.inf)), near)


@njit(nogil=True, cache=True)
@no_type_check
def _choose(start: int, stop: int, proposed: Any, positives: Any, h: int, slack: float, kept: Any, rest: Any) -> None:
    """Keep the negatives within `slack` of the h-th best near score; `rest` is the best of those not kept."""
    offsets, ids, scores = proposed
    positive_offsets, positive_ids = positives
    for row in range(start, stop):
        first, last = offsets[row], offsets[row + 1]
        own = positive_ids[positive_offsets[row] : positive_offsets[row + 1]]
        found = np.empty(last - first, scores.dtype)
        count = 0
        for pair in range(first, last):
            kept[pair] = True
            for positive in own:
                if ids[pair] == positive:
                    kept[pair] = False
            if kept[pair]:
                found[count] = scores[pair]
                count += 1
        rest[row] = -np.inf
        if count > h:
            cut = np.partition(found[:count], count - h)[count - h] - slack
            for pair in range(first, last):
                if kept[pair] and scores[pair] < cut:
                    kept[pair] = False
                    rest[row] = max(rest[row], scores[pair])


def _best_negatives(
    start: int,
    stop: int,
    offsets: Int64[np.ndarray, " anchors_and_one"],
    ids: Integer[np.ndarray, " pairs"],
    bits: UInt32[np.ndarray, " pairs"],
    positives: tuple[np.ndarray, np.ndarray],
    best: Int32[np.ndarray, "anchors h"],
    best_bits: UInt32[np.ndarray, "anchors h"],
) -> None:
    """Keep the first of each row's negatives by score, falling, then by id, rising: one 64-bit number says both."""
    width = int(np.diff(offsets[start : stop + 1]).max(initial=0))
    for first, last in blocks(stop - start, max(1, SORTED // max(1, width))):
        keys = np.full((last - first, width), NONE)
        _make_keys(start + first, offsets, ids, bits, positives, keys)
        keys.sort(axis=1)  # numpy's is several times as fast as a compiled one
        _read_keys(start + first, keys, best, best_bits)


@njit(nogil=True, cache=True)
@no_type_check
def _make_keys(start: int, offsets: Any, ids: Any, bits: Any, positives: Any, keys: Any) -> None:
    positive_offsets, positive_ids = positives
    sign, low, half = np.uint64(1 << 31), np.uint64(0xFFFFFFFF), np.uint64(32)
    for n in range(len(keys)):
        row = start + n
        own = positive_ids[positive_offsets[row] : positive_offsets[row + 1]]
        count = 0
        for pair in range(offsets[row], offsets[row + 1]):
            code = np.uint64(bits[pair])  # a float's bits read as an integer: those of negative floats fall
            keys[n, count] = ((code if code & sign else low ^ sign ^ code) << half) | np.uint64(ids[pair])
            count += 1
            for positive in own:
                if ids[pair] == positive:
                    count -= 1
        keys[n, count:] = NONE


@njit(nogil=True, cache=True)
@no_type_check
def _read_keys(start: int, keys: Any, best: Any, best_bits: Any) -> None:
    sign, low, half = np.uint64(1 << 31), np.uint64(0xFFFFFFFF), np.uint64(32)
    for n in range(len(keys)):
        for place in range(min(keys.shape[1], best.shape[1])):
            if keys[n, place] == NONE:
                break
            code = keys[n, place] >> half
            best[start + n, place] = np.int32(keys[n, place] & low)
            best_bits[start + n, place] = np.uint32(code if code & sign else low ^ sign ^ code)
