"""Both directions from one pass: a tile of similarities is computed once, for the images' lists and the captions'.

What a tile holds above an anchor's limit (`onepass.py`) is kept, with its near score; everything else is bounded by
the limit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, no_type_check

import numpy as np
from jaxtyping import Float32, Int32
from numba import njit

from aoq.pipeline.search.problem import offsets_of
from aoq.pipeline.search.proposals import Proposals
from aoq.pipeline.search.threads import in_parallel

TILE_IMAGES, TILE_CAPTIONS = 4096, 4096
CHUNK = 16  # entries of a tile, of which most often none is kept
TOO_MANY = 8  # times h: an anchor that keeps more has too many ties, and is searched a second time
SPARE = 2  # times that for images, of which a block is held at a time; limits are seldom that low


class Keeper:
    """The pairs that anchors of one side keep from tile after tile; one that keeps more than `most` keeps no more."""

    def __init__(self, limits: Float32[np.ndarray, " anchors"], most: int) -> None:
        self.limits = limits.copy()
        self._counts = np.zeros(len(limits), dtype=np.int64)
        self._most = most
        self._parts: list[tuple[np.ndarray, ...]] = []

    def add(self, anchors: Int32[np.ndarray, " pairs"], *others: np.ndarray) -> None:
        self._parts.append((anchors, *others))
        first, last = int(anchors.min(initial=0)), int(anchors.max(initial=0)) + 1
        self._counts[first:last] += np.bincount(anchors - first, minlength=last - first)
        self.limits[first:last][self._counts[first:last] > self._most] = np.inf

    def kept(self) -> tuple[np.ndarray, ...]:
        """Group the pairs: where each anchor's start and the last ones stop, their candidates and scores."""
        anchors, *others = (np.concatenate(column) for column in zip(*self._parts, strict=True))
        return group(anchors, len(self.limits), *others)

    def proposals(self, error: float) -> Proposals:
        offsets, candidates, scores = self.kept()
        return Proposals(offsets, candidates, scores, self.limits.astype(np.float64) + error, error)


class TileKeeper:
    """What the images of a block, and all captions, keep from tile after tile."""

    def __init__(self, images: Keeper, captions: Keeper) -> None:
        self._images, self._captions = images, captions
        self._buffers: list[np.ndarray] = []

    def take(self, kernel: Callable[..., None], arguments: tuple[Any, ...], shape: tuple[int, ...], first: int) -> None:
        """Hand each keeper what its anchors keep of a tile: all images, and captions from `first` on.

        kernel(start, stop, *arguments, image_limits, caption_limits, images, captions, scores, ends) writes the pairs
        of the rows from start to stop that reach the limit of either side, from place start * columns on, and where
        they end to `ends[start]`.
        """
        rows, columns = shape
        ends = np.empty(rows, dtype=np.int64)
        limits = self._images.limits, self._captions.limits[first : first + columns]
        buffers = self._buffers_for(rows * columns)
        ranges = in_parallel(kernel, rows, *arguments, *limits, *buffers, ends, parts=1)
        starts = np.array([start for start, _ in ranges])
        found, (image, caption, score) = (starts * columns, ends[starts]), buffers
        sides = (
            (self._images, image, limits[0], np.int32(0), caption, np.int32(first)),
            (self._captions, caption, limits[1], np.int32(first), image, np.int32(0)),
        )

        def hand_over(start: int, stop: int) -> None:
            for keeper, anchors, limit, first_anchor, candidates, first_candidate in sides[start:stop]:
                own, kept, scores = _reaching(*found, anchors, candidates, score, limit)
                keeper.add(own + first_anchor, kept + first_candidate, scores)

        in_parallel(hand_over, len(sides), parts=1)

    def take_scores(self, tile: Float32[np.ndarray, "rows columns"], shape: tuple[int, ...], first: int) -> None:
        """Hand each keeper what reaches its anchors' limits; the tile may be larger than its shape."""
        self.take(_scan, (tile,), shape, first)

    def _buffers_for(self, size: int) -> list[np.ndarray]:
        """Give the same ones as long as tiles are of one size: fresh memory costs more than what is written into it."""
        if not self._buffers or len(self._buffers[0]) < size:
            self._buffers = [np.empty(size, kind) for kind in (np.int32, np.int32, np.float32)]
        return self._buffers


@njit(nogil=True, cache=True)
@no_type_check
def _scan(
    start: int,
    stop: int,
    tile: Any,
    image_limits: Any,
    caption_limits: Any,
    images: Any,
    captions: Any,
    scores: Any,
    ends: Any,
) -> None:
    """Write the pairs of these rows whose score reaches a limit (`TileKeeper.take`)."""
    columns = len(caption_limits)
    end = start * columns
    for row in range(start, stop):
        limit = image_limits[row]
        for first in range(0, columns, CHUNK):
            limits = caption_limits[first : first + CHUNK]
            near = tile[row, first : first + len(limits)]
            found = 0
            for n in range(len(near)):
                found += near[n] >= min(limit, limits[n])
            if found == 0:
                continue
            for n in range(len(near)):
                if near[n] >= min(limit, limits[n]):
                    images[end], captions[end], scores[end] = row, first + n, near[n]
                    end += 1
    ends[start] = end


@njit(nogil=True, cache=True)
@no_type_check
def _reaching(starts: Any, ends: Any, anchors: Any, candidates: Any, scores: Any, limits: Any) -> Any:
    """The pairs of some stretches whose score reaches their anchor's limit."""
    count = 0
    for start, stop in zip(starts, ends):  # noqa: B905
        for pair in range(start, stop):
            count += scores[pair] >= limits[anchors[pair]]
    kept = np.empty(count, np.int32), np.empty(count, np.int32), np.empty(count, np.float32)
    place = 0
    for start, stop in zip(starts, ends):  # noqa: B905
        for pair in range(start, stop):
            if scores[pair] >= limits[anchors[pair]]:
                kept[0][place], kept[1][place], kept[2][place] = anchors[pair], candidates[pair], scores[pair]
                place += 1
    return kept


def group(anchors: Int32[np.ndarray, " pairs"], count: int, *columns: np.ndarray) -> tuple[np.ndarray, ...]:
    """Order pairs by their anchors: where each of `count` anchors' pairs start, and the columns, stably.

    >>> [part.tolist() for part in group(np.int32([2, 0, 2]), 3, np.int32([5, 6, 7]))]
    [[0, 1, 1, 3], [6, 5, 7]]
    """
    offsets = offsets_of(np.bincount(anchors, minlength=count))
    grouped = []
    for column in columns:
        ordered = np.empty_like(column)
        _place(anchors, offsets[:-1].copy(), column, ordered)
        grouped.append(ordered)
    return offsets, *grouped


@njit(nogil=True, cache=True)
@no_type_check
def _place(anchors: Any, places: Any, column: Any, ordered: Any) -> None:
    for pair in range(len(anchors)):
        ordered[places[anchors[pair]]] = column[pair]
        places[anchors[pair]] += 1
