"""A block of images with all captions: the images' lists, and the pairs that the captions keep of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from jaxtyping import Float32, Int32

from aoq.pipeline.search.lists import NegativeLists, to_arrow
from aoq.pipeline.search.problem import Direction, Problem, Side
from aoq.pipeline.search.proposals import Heads
from aoq.pipeline.search.ranges import read_rows
from aoq.pipeline.search.scores import exact_scores
from aoq.pipeline.search.store import Store
from aoq.pipeline.search.streamed.block import Group, Lists, Sizes, search_block, within
from aoq.pipeline.search.streamed.limits import read_limits

OWN, KEPT = "own", "kept"
SPARE = 8, 16
"""A caption may keep this many times what it expects of a block, and as many more; else it has too many ties."""


def strip(start: int, stop: int, device: str, problem: Problem, store: Store) -> list[pa.Table]:
    """Make the lists of these images, the scores of their own pairs, and what captions keep (`strip_kinds`)."""
    side = side_of(problem, "i2t", np.arange(start, stop), read_rows(problem.images, start, stop))
    sizes = Sizes.of(problem.memory, stop - start, side.anchors.shape[1])
    both = "t2i" in problem.directions
    limits = read_limits(store, len(problem.captions)) if both else None
    lists, own, kept = Lists(side), OwnPairs(side), KeptPairs(side, problem, limits)
    for group in search_block(lists, side, problem.captions, limits, sizes, device):
        own.take(group)
        if both:
            kept.take(group)
    made = [to_lists(lists.found, own.lowest, start)] if "i2t" in problem.directions else []
    return [*made, own.table(start), kept.table(start)] if both else made


def side_of(
    problem: Problem, direction: Direction, rows: np.ndarray, anchors: Float32[np.ndarray, "anchors D"]
) -> Side:
    """Some anchors of a direction, whose vectors were read; the candidates are as in the problem, not read."""
    whole = problem[direction]
    themselves = None if whole.themselves is None else whole.themselves[rows]
    return Side(anchors, whole.candidates, whole.positives.rows(rows), whole.h, whole.longest, whole.memory, themselves)


def to_lists(found: Heads, lowest: Float32[np.ndarray, " anchors"], first: int) -> pa.Table:
    """Make the rows of a table."""
    return to_arrow(NegativeLists(found.ids, found.scores, lowest, bound=found.bound), first)


class OwnPairs:
    """Exact scores of the block's pairs that match."""

    def __init__(self, side: Side) -> None:
        self._side, self._matches = side, side.matches
        self.lowest = np.full(len(side.anchors), np.nan, np.float32)
        """Score of each anchor's lowest-scoring positive so far."""
        self._parts: list[tuple[np.ndarray, ...]] = [_no_pairs()]

    def take(self, group: Group) -> None:
        own = within(self._matches, group.first, group.first + len(group.candidates))
        scores = exact_scores(self._side.anchors, group.candidates, own.offsets, own.ids)
        np.fmin(self.lowest, own.lowest(scores), out=self.lowest)
        rows = np.repeat(np.arange(len(self.lowest), dtype=np.int32), np.diff(own.offsets))
        order = np.argsort(own.ids, kind="stable")
        self._parts.append((own.ids[order] + np.int32(group.first), rows[order], scores[order]))

    def table(self, first_image: int) -> pa.Table:
        return _pairs_table(self._parts, first_image)


class KeptPairs:
    """Negatives of the block, with exact scores, that reach the limits of captions."""

    def __init__(self, side: Side, problem: Problem, limits: Float32[np.ndarray, " captions"] | None) -> None:
        self._side, self._limits = side, limits
        size = problem.size("t2i")
        self._most = SPARE[0] * size.wanted * len(side.anchors) // size.candidates + SPARE[1]
        self._parts: list[tuple[np.ndarray, ...]] = [_no_pairs()]

    def take(self, group: Group) -> None:
        """Add pairs. A caption of too many gets one in their place, of no image, that scores infinitely."""
        assert self._limits is not None
        offsets, images = group.offsets, group.kept
        scores = exact_scores(group.candidates, self._side.anchors, offsets, images)
        captions = np.repeat(np.arange(len(group.candidates), dtype=np.int32), np.diff(offsets))
        kept = scores >= self._limits[captions + group.first]
        kept &= ~self._own(group, captions, images)
        counts = np.bincount(captions[kept], minlength=len(group.candidates))
        kept &= counts[captions] <= self._most
        crowded = np.flatnonzero(counts > self._most).astype(np.int32)
        captions = np.concatenate([captions[kept], crowded])
        images = np.concatenate([images[kept], np.full(len(crowded), -1, np.int32)])
        scores = np.concatenate([scores[kept], np.full(len(crowded), np.inf, np.float32)])
        order: Any = np.argsort(captions, kind="stable") if len(crowded) else slice(None)
        self._parts.append((captions[order] + np.int32(group.first), images[order], scores[order]))

    def table(self, first_image: int) -> pa.Table:
        return _pairs_table(self._parts, first_image)

    def _own(
        self, group: Group, captions: Int32[np.ndarray, " pairs"], images: Int32[np.ndarray, " pairs"]
    ) -> np.ndarray:
        own = within(self._side.positives, group.first, group.first + len(group.candidates))
        rows = np.repeat(np.arange(len(self._side.anchors)), np.diff(own.offsets))
        count = len(self._side.anchors)
        return np.isin(captions.astype(np.int64) * count + images, own.ids.astype(np.int64) * count + rows)


def _no_pairs() -> tuple[np.ndarray, ...]:
    return np.empty(0, np.int32), np.empty(0, np.int32), np.empty(0, np.float32)


def _pairs_table(parts: list[tuple[np.ndarray, ...]], first_image: int) -> pa.Table:
    """Pairs by caption, rising; images are numbered from `first_image`."""
    captions, images, scores = (np.concatenate(column) for column in zip(*parts, strict=True))
    return pa.table({"caption": captions, "image": images + np.int32(first_image), "score": scores})
