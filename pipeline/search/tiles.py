"""Both directions in one pass: each tile of similarities is computed once, for the lists of images and captions.

Pairs of a tile above an anchor's limit (`onepass.py`) are kept, with their near score; all others are bounded by the
limit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, no_type_check

import numpy as np
from jaxtyping import Float32, Int32
from numba import njit

from aoq.pipeline.search.positives import offsets_of
from aoq.pipeline.search.proposals import Proposals
from aoq.pipeline.search.threads import in_parallel

TILE_IMAGES, TILE_CAPTIONS = 4096, 4096
CHUNK = 16  # entries of a tile; usually none of them is kept
TOO_MANY = 8  # times h: an anchor that keeps more has too many ties and is searched again
SPARE = 2  # times that for images, as only a block of them is held at a time; limits are seldom that low

Scan = tuple[Callable[..., None], tuple[Any, ...]]
"""A kernel and its first arguments, for `TileKeeper.take`."""


class Keeper:
    """Pairs that the anchors of one side keep, tile by tile; one that keeps more than `most` keeps no more."""

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
        """Order the pairs by anchor: where each anchor's start and the last ones stop, their candidates and scores."""
        anchors, *others = (np.concatenate(column) for column in zip(*self._parts, strict=True))
        offsets = offsets_of(np.bincount(anchors, minlength=len(self.limits)))
        grouped = [np.empty_like(column) for column in others]
        for column, ordered in zip(others, grouped, strict=True):
            _place(anchors, offsets[:-1].copy(), column, ordered)
        return offsets, *grouped

    def proposals(self, error: float) -> Proposals:
        offsets, candidates, scores = self.kept()
        return Proposals(offsets, candidates, scores, self.limits.astype(np.float64) + error, error)


class TileKeeper:
    """Pairs kept by the images of a block and by all captions, in tiles of up to `tile_captions` captions."""

    def __init__(self, images: Keeper, captions: Keeper, tile_captions: int) -> None:
        self._images, self._captions = images, captions
        size = len(images.limits) * min(tile_captions, len(captions.limits))
        # Allocated once for all tiles: fresh memory costs more than what is written into it.
        self._found = np.empty(size, np.int32), np.empty(size, np.int32), np.empty(size, np.float32)

    def take(self, scan: Scan, first: int, last: int) -> None:
        """Hand each keeper what its anchors keep of a tile: all images, and the captions from `first` to before `last`.

        kernel(start, stop, *arguments, first, limits, found, ends) writes the pairs of the rows from start to stop that
        reach the limit of either side into found (images, captions, scores), from place start * columns on, and their
        end into `ends[start]`.
        """
        kernel, arguments = scan
        rows, columns = len(self._images.limits), last - first
        limits, ends = (self._images.limits, self._captions.limits[first:last]), np.empty(rows, dtype=np.int64)
        ranges = in_parallel(kernel, rows, *arguments, first, limits, self._found, ends, parts=1)
        starts = np.array([start for start, _ in ranges])
        images, captions, scores = self._found
        sides = (self._images, images, captions), (self._captions, captions, images)

        def hand_over(start: int, stop: int) -> None:
            for keeper, anchors, candidates in sides[start:stop]:
                keeper.add(*_reaching(starts * columns, ends[starts], anchors, candidates, scores, keeper.limits))

        in_parallel(hand_over, len(sides), parts=1)


@njit(nogil=True, cache=True)
@no_type_check
def scan_scores(start: int, stop: int, tile: Any, first_caption: int, limits: Any, found: Any, ends: Any) -> None:
    """Write the pairs of these rows whose score reaches a limit (`TileKeeper.take`); the tile may have more columns."""
    image_limits, caption_limits = limits
    images, captions, scores = found
    columns = len(caption_limits)
    end = start * columns
    for row in range(start, stop):
        limit = image_limits[row]
        for first in range(0, columns, CHUNK):
            limits_here = caption_limits[first : first + CHUNK]
            near = tile[row, first : first + len(limits_here)]
            reaching = 0
            for n in range(len(near)):
                reaching += near[n] >= min(limit, limits_here[n])
            if reaching == 0:
                continue
            for n in range(len(near)):
                if near[n] >= min(limit, limits_here[n]):
                    images[end], captions[end], scores[end] = row, first_caption + first + n, near[n]
                    end += 1
    ends[start] = end


@njit(nogil=True, cache=True)
@no_type_check
def _reaching(starts: Any, ends: Any, anchors: Any, candidates: Any, scores: Any, limits: Any) -> Any:
    """Select the pairs of some stretches whose score reaches their anchor's limit."""
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


@njit(nogil=True, cache=True)
@no_type_check
def _place(anchors: Any, places: Any, column: Any, ordered: Any) -> None:
    for pair in range(len(anchors)):
        ordered[places[anchors[pair]]] = column[pair]
        places[anchors[pair]] += 1
