"""The one pass of a small job, by numpy alone: all similarities at once.

It ends before torch would be loaded and kernels compiled. Of each anchor's near scores the h-th best, less twice their
error, is its limit; all pairs that reach a limit are scored exactly. No row needs a second search.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
from jaxtyping import Float, Float32, Int32, Int64
from threadpoolctl import threadpool_limits

from aoq.pipeline.search.lists import NegativeLists, to_arrow
from aoq.pipeline.search.plain_scores import plain_scores
from aoq.pipeline.search.positives import offsets_of
from aoq.pipeline.search.problem import LAST_BITS, Direction, Problem, Side, blocks
from aoq.pipeline.search.store import Memory, Store
from aoq.pipeline.search.threads import in_parallel
from aoq.pipeline.search.units import Backend, Steps, Unit, unit_name

WORK, PAIRS = 2**37, 2**27
"""Products of two numbers, and pairs, of a job that is small: it takes no longer than loading torch and the kernels."""
MOST = 2**24
"""Pairs that are scored exactly, at most."""
NEAR_BYTES = 5
"""Memory per near score: 4, and what looks through them."""
PAIR_BYTES = 64
"""Memory per pair while it is scored and sorted."""
TOGETHER = 2**20
"""Near scores that a thread looks through at a time; they fit into a cache."""
HALF, LOW, ALL_BUT_SIGN = np.uint64(32), np.uint64(2**32 - 1), np.uint32(2**31 - 1)

Near = Float32[np.ndarray, "images captions"]


def is_small(problem: Problem) -> bool:
    pairs = len(problem.images) * len(problem.captions)
    sizes = [problem.size(direction) for direction in problem.directions]
    fits = sum(size.anchors * size.wanted for size in sizes) <= _most(problem)
    return fits and pairs <= PAIRS and pairs * problem.images.shape[1] <= WORK


def _most(problem: Problem) -> int:
    """Number of pairs that may be scored exactly: more reach a limit only if many tie."""
    left = problem.memory - NEAR_BYTES * len(problem.images) * len(problem.captions)
    return min(MOST, left // PAIR_BYTES)


def _plan(problem: Problem) -> Steps[Problem]:
    return [[Unit(tuple(unit_name(d, 0, problem.size(d).anchors) for d in problem.directions), _search)]]


def _search(problem: Problem, store: Store) -> list[pa.Table]:
    """Find the lists of all directions; where too many pairs tie, by tiles."""
    with threadpool_limits(1, user_api="blas"):  # each thread has rows of its own
        found = _at_once(problem)
    return _by_tiles(problem) if found is None else found


def _at_once(problem: Problem) -> list[pa.Table] | None:
    """Find the lists; None if more pairs reach a limit than memory holds."""
    longest, near = problem.longest, _near(problem)
    limits = {direction: _limits(near, direction, problem[direction]) for direction in problem.directions}
    counts, ids = _reaching(near, limits, _most(problem))
    if ids is None:
        return None
    offsets = offsets_of(counts)
    scores = plain_scores(problem.images, problem.captions, offsets, ids, longest)
    return [_table(problem[d], d, limit, offsets, ids, scores) for d, limit in limits.items()]


def _near(problem: Problem) -> Near:
    """Multiply all, and leave out the positives."""
    near = np.empty((len(problem.images), len(problem.captions)), np.float32)
    captions = problem.captions.T

    def multiply(start: int, stop: int) -> None:
        np.matmul(problem.images[start:stop], captions, out=near[start:stop])

    in_parallel(multiply, len(near))
    own = problem[problem.directions[0]].positives
    rows = np.repeat(np.arange(len(own.offsets) - 1), np.diff(own.offsets))
    near[(rows, own.ids) if problem.directions[0] == "i2t" else (own.ids, rows)] = -np.inf
    return near


def _limits(near: Near, direction: Direction, side: Side) -> Float32[np.ndarray, " anchors"]:
    """Lower each anchor's h-th best near score so far that whatever does not reach it is surely worse."""
    scores = near if direction == "i2t" else near.T
    last, place = np.empty(len(scores)), scores.shape[1] - side.h

    def choose(start: int, stop: int) -> None:
        for first, end in blocks(stop - start, _rows(scores)):
            part = np.array(scores[start + first : start + end], order="C")
            part.partition(place, axis=1)
            last[start + first : start + end] = part[:, place]

    in_parallel(choose, len(scores))
    lowest = last - (2 * side.rounding_error + LAST_BITS * side.longest)
    return np.nextafter(lowest.astype(np.float32), np.float32(-np.inf))


def _reaching(
    near: Near, limits: Mapping[Direction, Float32[np.ndarray, " _"]], most: int
) -> tuple[Int64[np.ndarray, " images"], Int32[np.ndarray, " pairs"] | None]:
    """Find the pairs whose near score reaches a limit: their number, and captions, by image; None if too many."""
    counts, found = np.zeros(len(near), np.int64), [np.empty(0, np.int32)]
    for start, stop in blocks(len(near), _rows(near)):
        part = near[start:stop]
        reached = np.zeros(part.shape, np.bool_)
        if "i2t" in limits:
            reached |= part >= limits["i2t"][start:stop, None]
        if "t2i" in limits:
            reached |= part >= limits["t2i"]
        counts[start:stop] = np.count_nonzero(reached, axis=1)
        if counts.sum() > most:
            return counts, None
        found.append((np.flatnonzero(reached) % near.shape[1]).astype(np.int32))
    return counts, np.concatenate(found)


def _rows(scores: np.ndarray) -> int:
    return max(1, TOGETHER // scores.shape[1])


def _table(
    side: Side,
    direction: Direction,
    limits: Float32[np.ndarray, " anchors"],
    offsets: Int64[np.ndarray, " images_and_one"],
    captions: Int32[np.ndarray, " pairs"],
    scores: Float32[np.ndarray, " pairs"],
) -> pa.Table:
    """Make the lists of a direction of all pairs that were scored; any other scores less than limit + error."""
    images = np.repeat(np.arange(len(offsets) - 1, dtype=np.int32), np.diff(offsets))
    anchors, candidates = (images, captions) if direction == "i2t" else (captions, images)
    kept = np.flatnonzero(scores >= limits[anchors])  # the h best: their near scores are an error above, at most
    if direction == "t2i":
        kept = kept[np.argsort(anchors[kept], kind="stable")]
    starts = offsets_of(np.bincount(anchors[kept], minlength=len(limits)))
    ids, best = np.empty((len(limits), side.h), np.int32), np.empty((len(limits), side.h), np.float32)
    in_parallel(_sort_rows, len(limits), starts, candidates[kept], scores[kept], ids, best)
    own = side.matches
    lowest = own.lowest(plain_scores(side.anchors, side.candidates, own.offsets, own.ids, side.longest))
    bound = _rounded_up(limits.astype(np.float64) + side.rounding_error)
    return to_arrow(NegativeLists(ids, best, lowest, bound=bound))


def _sort_rows(
    start: int,
    stop: int,
    offsets: np.ndarray,
    candidates: np.ndarray,
    scores: np.ndarray,
    ids: np.ndarray,
    best: np.ndarray,
) -> None:
    """Sort each row by score, falling, then by id, rising: one 64-bit number says both (`proposals.py`)."""
    first, counts = offsets[start], np.diff(offsets[start : stop + 1])
    here = slice(first, offsets[stop])
    bits = scores[here].view(np.uint32)
    codes = np.where(bits >> 31, bits, ALL_BUT_SIGN ^ bits)
    keys = np.full((len(counts), counts.max(initial=0)), np.iinfo(np.uint64).max, np.uint64)
    low = candidates[here].astype(np.uint64)
    keys[np.arange(keys.shape[1]) < counts[:, None]] = codes.astype(np.uint64) << HALF | low
    keys.sort(axis=1)
    keys = keys[:, : ids.shape[1]]
    ids[start:stop], codes = (keys & LOW).astype(np.int32), (keys >> HALF).astype(np.uint32)
    best[start:stop] = np.where(codes >> 31, codes, ALL_BUT_SIGN ^ codes).view(np.float32)


def _rounded_up(bounds: Float[np.ndarray, " anchors"]) -> Float32[np.ndarray, " anchors"]:
    near = bounds.astype(np.float32)
    return np.where(near < bounds, np.nextafter(near, np.float32(np.inf)), near)


def _by_tiles(problem: Problem) -> list[pa.Table]:
    """Leave a job with many ties to the tiles, which search what ties again."""
    from aoq.pipeline.search.onepass import ONE_PASS

    passing = Memory()
    for step in ONE_PASS.plan(problem):
        for unit in step:
            unit.do(problem, passing)
    return [pa.concat_tables(map(passing.read, passing.names(f"{d}-"))) for d in problem.directions]


SMALL = Backend("onepass", "exact, both directions from one pass, for a small job", _plan, is_small=is_small)
