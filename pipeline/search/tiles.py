"""Both directions in one pass: each tile of similarities is computed once, for the lists of images and captions.

Pairs whose near score says that they may reach a limit of either side (`onepass.py`) are scored exactly while the
vectors of their tile are at hand, once for both sides. Those that reach it are kept, with their score.
"""

from __future__ import annotations

from typing import Any, no_type_check

import numpy as np
from jaxtyping import Float32, Float64, Int32
from numba import njit

from aoq.pipeline.search.plain_scores import sum_exactly
from aoq.pipeline.search.positives import offsets_of
from aoq.pipeline.search.problem import Side
from aoq.pipeline.search.products.product import Product
from aoq.pipeline.search.proposals import Heads, known_heads
from aoq.pipeline.search.scores import norm_of, read_only, score_between
from aoq.pipeline.search.threads import in_parallel

TILE_IMAGES, TILE_CAPTIONS = 8192, 2048
STRIP = 256  # captions of a tile that are looked through together: their vectors fit into a second-level cache
TOO_MANY = 8  # times h: an anchor that keeps more has too many ties and is searched again
SPARE = 2  # times that for images, as only a block of them is held at a time; limits are seldom that low

Pair = tuple[np.ndarray, np.ndarray]
"""Of the images, and of the captions."""


class Keeper:
    """Pairs that the anchors of one side keep: all whose exact score reaches their limit.

    An anchor that keeps more than `most` keeps no more: its limit becomes infinite.
    """

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

        def place(start: int, stop: int) -> None:
            for column, ordered in zip(others[start:stop], grouped[start:stop], strict=True):
                _place(anchors, offsets[:-1].copy(), column, ordered)

        in_parallel(place, len(others), parts=1)
        return offsets, *grouped

    def heads(self, side: Side) -> Heads:
        offsets, ids, scores = self.kept()
        return known_heads(side, offsets, ids, scores, self.limits)


class TileKeeper:
    """Pairs kept by the images of a block and by all captions, in tiles of up to `tile_captions` captions."""

    def __init__(
        self,
        product: Product,
        vectors: Float32[np.ndarray, "images D"],
        images: Keeper,
        captions: Keeper,
        tile_captions: int,
    ) -> None:
        self._product, self._block = product, product.prepare(vectors)
        self._vectors = read_only(np.ascontiguousarray(vectors))
        self._norms = _norms(self._vectors)
        self._images, self._captions = images, captions
        size = len(vectors) * min(tile_captions, len(captions.limits))
        # Allocated once for all tiles: fresh memory costs more than what is written into it.
        self._found = np.empty(size, np.int32), np.empty(size, np.int32), np.empty(size, np.float32)

    def take(self, vectors: Float32[np.ndarray, "captions D"], first: int) -> None:
        """Hand each keeper what its anchors keep of a tile: all images, and captions from number `first` on."""
        rows, columns = len(self._vectors), len(vectors)
        limits = self._images.limits, self._captions.limits[first : first + columns]
        captions, ends = read_only(np.ascontiguousarray(vectors)), np.empty(rows, dtype=np.int64)
        kernel, arguments = self._product.scan(self._block, self._product.prepare(vectors), limits)
        sides = (self._vectors, captions), (self._norms, _norms(captions)), limits

        def look_through(start: int, stop: int) -> None:
            kernel(start, stop, *arguments, self._found[:2], ends)
            ends[start] = self._score(start * columns, int(ends[start]), *sides)

        starts = np.array([start for start, _ in in_parallel(look_through, rows, parts=2)])
        found_images, found_captions, scores = self._found
        stretches = starts * columns, ends[starts]
        kept_by = (found_images, found_captions, self._images, 0), (found_captions, found_images, self._captions, first)

        def hand_over(start: int, stop: int) -> None:
            for (anchors, candidates, keeper, number), reached in list(zip(kept_by, limits, strict=True))[start:stop]:
                kept, other, score = _reaching(*stretches, anchors, candidates, scores, reached)
                keeper.add(kept + np.int32(number), other + np.int32(first - number), score)

        in_parallel(hand_over, len(kept_by), parts=1)

    def _score(self, start: int, end: int, vectors: Pair, norms: Pair, limits: Pair) -> int:
        """Score a stretch of what was found, and keep in its first places what may count; return the end of these."""
        images, captions, scores = self._found
        end = _score_found(start, end, vectors, norms, limits, self._found)
        for pair in start + np.flatnonzero(np.isnan(scores[start:end])):
            scores[pair] = sum_exactly(vectors[0][images[pair]], vectors[1][captions[pair]])
        return end


def _norms(vectors: Float32[np.ndarray, "items D"]) -> Float64[np.ndarray, " items"]:
    """Upper bounds of the norms."""
    norms = np.empty(len(vectors))
    in_parallel(_bound_norms, len(vectors), vectors, norms)
    return norms


@njit(nogil=True, cache=True)
@no_type_check
def scan_scores(start: int, stop: int, tile: Any, floors: Any, found: Any, ends: Any) -> None:
    """Write the pairs of these rows whose near score reaches a floor (`Scan`); the tile may have more columns."""
    image_floors, caption_floors = floors
    images, captions = found
    columns = len(caption_floors)
    end = start * columns
    wanted = np.empty(STRIP, np.uint8)
    eights = wanted.view(np.uint64)
    for first in range(0, columns, STRIP):
        width = min(STRIP, columns - first)
        wanted[width:] = 0
        floors_here = caption_floors[first : first + width]
        for row in range(start, stop):
            near, floor = tile[row, first : first + width], image_floors[row]
            for n in range(width):
                wanted[n] = near[n] >= min(floor, floors_here[n])
            for eight in range(len(eights)):  # usually none of eight is wanted
                if eights[eight] == 0:
                    continue
                for n in range(8 * eight, 8 * eight + 8):
                    if wanted[n]:
                        images[end], captions[end] = row, first + n
                        end += 1
    ends[start] = end


@njit(nogil=True, cache=True)
@no_type_check
def _bound_norms(start: int, stop: int, vectors: Any, norms: Any) -> None:
    for row in range(start, stop):
        norms[row] = norm_of(vectors[row])


@njit(nogil=True, cache=True)
@no_type_check
def _score_found(start: int, end: int, vectors: Any, norms: Any, limits: Any, found: Any) -> Any:
    """Score these pairs exactly, NaN where only an exact sum decides, and move up those that may reach a limit."""
    image_vectors, caption_vectors = vectors
    image_norms, caption_norms = norms
    image_limits, caption_limits = limits
    images, captions, scores = found
    kept = start
    for pair in range(start, end):
        row, column = images[pair], captions[pair]
        size = image_norms[row] * caption_norms[column]
        low, high = score_between(image_vectors[row], caption_vectors[column], size)
        if high >= min(image_limits[row], caption_limits[column]):
            images[kept], captions[kept], scores[kept] = row, column, low if low == high else np.nan
            kept += 1
    return kept


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
