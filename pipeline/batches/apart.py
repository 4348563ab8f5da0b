"""Separate pairs that match, or may match, into different batches."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Int64, Integer

from aoq.pipeline.batches.lists import MeetingLists

CELLS = 1 << 20
"""Images x captions looked up at once."""
TRIES = 50
"""Places tried for a pair."""


def keep_apart(
    lists: MeetingLists, order: Integer[np.ndarray, " pairs"], size: int, rng: np.random.Generator
) -> Integer[np.ndarray, " pairs"]:
    """Exchange pairs that match another of their batch with pairs of other batches, so that neither matches any.

    A pair without such an exchange stays, as in a batch as large as the data.
    """
    order = order.copy()
    for place in meetings(lists, order, size).tolist():
        if not _would_match(lists, order, place, order[place], size):
            continue  # the other one was moved
        for other in rng.integers(len(order), size=TRIES).tolist():
            exchanged = (place, order[other]), (other, order[place])
            if other // size != place // size and not any(
                _would_match(lists, order, where, pair, size) for where, pair in exchanged
            ):
                order[[place, other]] = order[[other, place]]
                break
    return order


def meetings(lists: MeetingLists, order: Integer[np.ndarray, " pairs"], size: int) -> Int64[np.ndarray, " places"]:
    """Find places of pairs whose image or caption matches another pair's in the batch; the later of the two."""
    found, whole = [], len(order) // size * size
    step = size * max(1, CELLS // size**2)
    for start, stop in [*((start, min(start + step, whole)) for start in range(0, whole, step)), (whole, len(order))]:
        pairs = lists.pairs[order[start:stop]].reshape(-1, min(size, max(1, stop - start)), 2)
        batch, row, column = np.nonzero(cells_that_match(lists, pairs))
        found.append(start + batch * size + np.maximum(row, column))
    return np.unique(np.concatenate(found))


def cells_that_match(lists: MeetingLists, batches: Integer[np.ndarray, "n size 2"]) -> Bool[np.ndarray, "n size size"]:
    """Mark where the image of a pair matches the caption of another pair in its batch."""
    images, captions = np.moveaxis(batches, 2, 0)
    cells = lists.match(images[:, :, None], captions[:, None, :])
    own = np.arange(batches.shape[1])
    cells[:, own, own] = False
    return cells


def _would_match(
    lists: MeetingLists, order: Integer[np.ndarray, " pairs"], place: int, pair: np.int64, size: int
) -> bool:
    """Return whether a pair at this place would match another of the batch."""
    start = place // size * size
    others = np.delete(order[start : start + size], place - start)
    own, (images, captions) = lists.pairs[[pair]], lists.pairs[others].T
    return bool((lists.match(own[:, 0], captions) | lists.match(images, own[:, 1])).any())
