"""Both directions from one pass: a tile of similarities is computed once, for the images' lists and the captions'.

What a tile holds above an anchor's limit (`limits.py`) is kept, with its near score; everything else is bounded by the
limit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, no_type_check

import numpy as np
from jaxtyping import Float32, Int32
from numba import njit

from aoq.pipeline.search.grouping import group
from aoq.pipeline.search.proposals import Proposals
from aoq.pipeline.search.threads import in_parallel

TILE_IMAGES, TILE_CAPTIONS = 4096, 4096
CHUNK = 16  # entries of a tile, of which most often none is kept
TOO_MANY = 8  # times h: an anchor that keeps more has ties beyond number, and is searched by itself
SPARE = 2  # times that for images, of which a block is held at a time: a low limit is seldom so low


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
        """Where each anchor's pairs begin, and the last ones end; the pairs' candidates and scores."""
        anchors, *others = (np.concatenate(column) for column in zip(*self._parts, strict=True))
        return group(anchors, len(self.limits), *others)

    def proposals(self, error: float) -> Proposals:
        offsets, candidates, scores = self.kept()
        return Proposals(offsets, candidates, scores, self.limits.astype(np.float64) + error, error)


class TileKeeper:
    """What the images of a block, and all captions, keep from tile after tile."""

    def __init__(self, images: Keeper, captions: Keeper) -> None:
        self._keepers = images, captions
        self._buffers: list[list[np.ndarray]] = []

    def take(self, kernel: Callable[..., None], arguments: tuple[Any, ...], shape: tuple[int, ...], first: int) -> None:
        """Hand each keeper what its anchors keep of a tile: all images, and captions from `first` on.

        kernel(start, stop, *arguments, limits, …) writes what the rows from start to stop hold for images, and for
        captions: row, column and score of each pair, from place start * columns on; and of both where they end.
        """
        rows, columns = shape
        ends = np.empty((2, rows), dtype=np.int64)
        images, captions = self._keepers
        limits = images.limits, captions.limits[first : first + columns]
        buffers = self._buffers_for(rows * columns)
        ranges = in_parallel(kernel, rows, *arguments, *limits, *buffers[0], *buffers[1], ends, parts=1)
        for keeper, buffer, end in zip(self._keepers, buffers, ends, strict=True):
            found = [slice(start * columns, end[start]) for start, _ in ranges]
            image, caption, score = (np.concatenate([column[part] for part in found]) for column in buffer)
            caption += np.int32(first)
            keeper.add(*((image, caption) if keeper is images else (caption, image)), score)

    def take_scores(self, tile: Float32[np.ndarray, "rows columns"], shape: tuple[int, ...], first: int) -> None:
        """Hand each keeper what reaches its anchors' limits; the tile may be larger than its shape."""
        self.take(_scan, (tile,), shape, first)

    def _buffers_for(self, size: int) -> list[list[np.ndarray]]:
        """The same ones as long as tiles are of one size: fresh memory costs more than what is written into it."""
        if not self._buffers or len(self._buffers[0][0]) < size:
            self._buffers = [[np.empty(size, kind) for kind in (np.int32, np.int32, np.float32)] for _ in range(2)]
        return self._buffers


@njit(nogil=True, cache=True)
@no_type_check
def _scan(
    start: int,
    stop: int,
    tile: Any,
    image_limits: Any,
    caption_limits: Any,
    own_images: Any,
    own_captions: Any,
    own_scores: Any,
    their_images: Any,
    their_captions: Any,
    their_scores: Any,
    ends: Any,
) -> None:
    """Write the pairs of these rows that the image (`own`) or the caption (`their`) keeps, from place start * C on."""
    columns = len(caption_limits)
    own = their = start * columns
    for row in range(start, stop):
        limit = image_limits[row]
        for first in range(0, columns, CHUNK):
            limits = caption_limits[first : first + CHUNK]
            scores = tile[row, first : first + len(limits)]
            found = 0
            for n in range(len(scores)):
                found += scores[n] >= min(limit, limits[n])
            if found == 0:
                continue
            for n in range(len(scores)):
                if scores[n] >= limit:
                    own_images[own], own_captions[own], own_scores[own] = row, first + n, scores[n]
                    own += 1
                if scores[n] >= limits[n]:
                    their_images[their], their_captions[their], their_scores[their] = row, first + n, scores[n]
                    their += 1
    ends[0, start], ends[1, start] = own, their
