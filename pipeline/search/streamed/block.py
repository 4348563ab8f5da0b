"""A block of anchors in memory while all candidates stream by: its exact lists, and what the candidates keep of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, no_type_check

import numpy as np
from jaxtyping import Float32, Int32, Int64
from numba import njit

from aoq.pipeline.search.positives import Positives
from aoq.pipeline.search.problem import Side, blocks
from aoq.pipeline.search.proposals import Heads, Proposals, heads, near_heads
from aoq.pipeline.search.ranges import stream
from aoq.pipeline.search.streamed.near import Kept, Near

PAIR_BYTES = 80
"""Memory per pair that is found and rescored."""


class Group(NamedTuple):
    """Candidates that were looked through together: the n-th keeps the anchors `kept[offsets[n]:offsets[n + 1]]`."""

    first: int
    candidates: Float32[np.ndarray, "candidates D"]
    offsets: Int64[np.ndarray, " candidates_and_one"]
    kept: Int32[np.ndarray, " pairs"]


class Sizes(NamedTuple):
    """Bounds on the work that is in memory at a time."""

    chunk: int
    """Candidates that are read at a time."""
    tile: int
    """Candidates whose products are held at a time."""
    pairs: int
    """Pairs that are found before they are rescored."""

    @classmethod
    def of(cls, memory: int, anchors: int, dimensions: int) -> Sizes:
        """Divide the memory beside the block: a quarter for pairs, an eighth for each chunk, read and being read."""
        pairs = max(1, memory // 4 // PAIR_BYTES)
        tile = min(4096, max(64, pairs // anchors))
        chunk = min(2**15, max(tile, memory // 8 // (12 * dimensions)))
        return cls(chunk, tile, pairs)


class Lists:
    """The h best of what streamed by so far, score falling, then id rising; candidates come in the order of their ids.

    A candidate that scores less than the h-th so far is no more looked at, so there are ever fewer.
    """

    def __init__(self, side: Side) -> None:
        """Begin with empty lists; the candidates of `side` are not read."""
        rows = len(side.anchors)
        self._side = side
        self._ids = np.full((rows, side.h), -1, np.int32)
        self._scores = np.full((rows, side.h), -np.inf, np.float32)
        self._bound = np.full(rows, -np.inf, np.float32)

    @property
    def limits(self) -> Float32[np.ndarray, " anchors"]:
        """Exact score that a candidate must reach, for each anchor."""
        if self._side.h == 0:
            return np.full(len(self._ids), np.inf, np.float32)
        return self._scores[:, -1].copy()

    @property
    def found(self) -> Heads:
        return Heads(self._ids, self._scores, self._bound)

    def first_limits(
        self, near: Near, candidates: Float32[np.ndarray, "candidates D"]
    ) -> Float32[np.ndarray, " anchors"]:
        """Limits to begin with: the h-th best of guesses among the chunk's first candidates."""
        k = self._side.wanted
        if self._side.h == 0 or k >= len(candidates):
            return self.limits
        guessed = near.scores(0, len(candidates)).topk(k).indices.cpu().numpy()
        return near_heads(self._of(candidates, 0), guessed).scores[:, -1]

    def take(self, first: int, candidates: Float32[np.ndarray, "candidates D"], proposals: Proposals) -> None:
        """Add candidates, numbered from `first`, of which all that reach a limit are proposed."""
        if self._side.h == 0:
            return
        new = heads(self._of(candidates, first), proposals)
        _merge(self._ids, self._scores, np.where(new.ids < 0, new.ids, new.ids + np.int32(first)), new.scores)
        np.maximum(self._bound, new.bound, out=self._bound)

    def _of(self, candidates: Float32[np.ndarray, "candidates D"], first: int) -> Side:
        own = within(self._side.positives, first, first + len(candidates))
        return Side(self._side.anchors, candidates, own, self._side.h, self._side.longest)


def search_block(
    lists: Lists,
    side: Side,
    candidates: Any,
    limits: Float32[np.ndarray, " candidates"] | None,
    sizes: Sizes,
    device: str,
) -> Iterator[Group]:
    """Stream the candidates by the block: fill its lists, and give what the candidates of each group keep of it.

    A candidate keeps the anchors whose exact score may reach its own limit; without `limits` none does.
    """
    for start, chunk in stream(candidates, sizes.chunk):
        near = Near(side.anchors, chunk, side.longest, device)
        others = np.full(len(chunk), np.inf, np.float32) if limits is None else limits[start : start + len(chunk)]
        at_least = lists.limits if start else lists.first_limits(near, chunk[: sizes.tile])
        first = 0
        kept: Kept | None = None
        for tile, end in blocks(len(chunk), sizes.tile):
            if kept is None:
                first, kept = tile, near.begin(at_least, others[tile:], sizes.tile)
            near.scan(kept, tile, end, first)
            if kept.pairs < sizes.pairs and end < len(chunk):
                continue
            part = chunk[first:end]
            offsets, ids, scores = near.kept(kept.rows)
            unproposed = np.nextafter(at_least, np.float32(-np.inf)).astype(np.float64)
            lists.take(start + first, part, Proposals(offsets, ids, scores, unproposed, near.error))
            offsets, ids, _ = near.kept(kept.columns)
            yield Group(start + first, part, offsets[: len(part) + 1], ids)
            at_least, kept = lists.limits, None


def within(positives: Positives, first: int, last: int) -> Positives:
    """Keep the positives from `first` to before `last`, numbered from `first`."""
    inside = (positives.ids >= first) & (positives.ids < last)
    offsets = np.concatenate([[0], np.cumsum(inside)])[positives.offsets]
    return Positives(positives.ids[inside] - np.int32(first), offsets.astype(np.int64))


@njit(nogil=True, cache=True)
@no_type_check
def _merge(ids: Any, scores: Any, new_ids: Any, new_scores: Any) -> None:
    """Merge new lists, of higher ids, into lists; both fall, and -1 is behind all."""
    depth = ids.shape[1]
    merged, merged_scores = np.empty(depth, np.int32), np.empty(depth, np.float32)
    for row in range(len(ids)):
        if new_ids[row, 0] < 0:
            continue
        one = other = 0
        for place in range(depth):
            takes_new = new_ids[row, other] >= 0 and (ids[row, one] < 0 or new_scores[row, other] > scores[row, one])
            if takes_new:
                merged[place], merged_scores[place] = new_ids[row, other], new_scores[row, other]
                other += 1
            else:
                merged[place], merged_scores[place] = ids[row, one], scores[row, one]
                one += 1
        ids[row], scores[row] = merged, merged_scores
