"""Lists from a table: pairs that should share a batch, and pairs that must not."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int32, Int64

from aoq.pipeline.search.positives import with_itself
from aoq.pipeline.search.problem import DIRECTIONS, Direction
from aoq.pipeline.tables.pairs import Pairs, is_among, listed_keys, pair_keys
from aoq.pipeline.tables.screens.view import EXCLUDED, Judged, View
from aoq.pipeline.tables.table import NegativeTable

Listed = Int32[np.ndarray, "anchors h"]
"""Rows of hard negatives, hardest first; -1 for padding and for negatives that should not share the anchor's batch."""


@dataclass(frozen=True)
class MeetingLists:
    """Pairs of an epoch, each anchor's hard negatives, and the images and captions that must not share a batch."""

    pairs: Pairs
    i2t: Int32[np.ndarray, "images h"]
    t2i: Int32[np.ndarray, "captions g"]
    kept_apart: Int64[np.ndarray, " keys"]
    """Ascending `pair_keys` of images and captions that match, or may match."""

    @property
    def images(self) -> int:
        return len(self.i2t)

    @property
    def captions(self) -> int:
        return len(self.t2i)

    def match(self, images: np.ndarray, captions: np.ndarray) -> Bool[np.ndarray, "*pairs"]:
        """Mark those that must not share a batch."""
        return is_among(pair_keys(images, captions, self.captions), self.kept_apart)


def meeting_lists(
    table: NegativeTable,
    pairs: Pairs,
    *,
    true: Pairs | None = None,
    view: View | None = None,
    ranks: tuple[int, int] | None = None,
) -> MeetingLists:
    """Take the pairs that should share a batch: each anchor and its negatives of these ranks, after the screen.

    `ranks` are [start, stop) of captions, from 0; those of images are scaled down by images / captions, at least one.
    By default all are taken. Negatives that the screen drops are ignored. Suspected ones are kept apart, as are true
    pairs: `pairs`, and all of `true`, which includes those of copies of a photograph.
    """
    true = pairs if true is None else true
    if table.is_one_set:
        true = with_itself(true, len(table.i2t))
    captions = len(table.t2i)
    apart = [pair_keys(true[:, 0], true[:, 1], captions)]
    lists = {}
    for direction in DIRECTIONS:
        ids = table[direction].negative_ids
        places = _places(direction, ranks, (len(table.i2t), captions), ids.shape[1])
        judged = view[direction] if view else None
        lists[direction] = ids[:, places]
        if judged is not None:
            if direction in table.directions:
                apart.append(_suspected(direction, ids, judged, captions))
            lists[direction] = np.where(judged.flags[:, places] == 0, lists[direction], -1)
    return MeetingLists(pairs, lists["i2t"], lists["t2i"], np.unique(np.concatenate(apart)))


def _suspected(direction: Direction, ids: Listed, judged: Judged, captions: int) -> Int64[np.ndarray, " keys"]:
    """Return the keys of listed pairs that may match; those left out by rank or score alone are not suspected."""
    anchors, places = np.nonzero((ids >= 0) & (judged.flags & ~np.uint32(EXCLUDED) != 0))
    return listed_keys(direction, anchors, ids[anchors, places], captions)


def _places(direction: Direction, ranks: tuple[int, int] | None, sizes: tuple[int, int], depth: int) -> slice:
    if ranks is None:
        return slice(0, depth)
    start, stop = ranks
    if not 0 <= start < stop:
        raise ValueError(f"ranks are START:STOP with 0 <= START < STOP; got {start}:{stop}.")
    images, captions = sizes
    if direction == "t2i" and images < captions:
        start, stop = (round(rank * images / captions) for rank in ranks)
        stop = max(stop, start + 1)
    if depth and start >= depth:
        raise ValueError(
            f"ranks {ranks[0]}:{ranks[1]} begin after the table's {depth} of {direction}; lower them, or mine more."
        )
    return slice(start, min(stop, depth))
