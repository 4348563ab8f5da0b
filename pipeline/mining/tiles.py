"""Both directions from one pass: a tile of similarities is computed once, for the images' lists and the captions'.

A random sample of the other side says from which score on a candidate may be among an anchor's h best. What a tile
holds above that limit is kept, with its near score; everything else is bounded by it.
"""

from __future__ import annotations

from typing import Any, no_type_check

import numpy as np
from jaxtyping import Float32, Int32
from numba import njit

from pipeline.mining.problem import Side, blocks
from pipeline.mining.products import Product
from pipeline.mining.proposals import Proposals
from pipeline.mining.threads import in_parallel

TILE_IMAGES, TILE_CAPTIONS = 1024, 4096
SAMPLED = 3.0  # of an anchor's h best, so many are expected in the sample
FEWEST_SAMPLED = 1024
TOO_MANY = 8  # times h: an anchor that keeps more has ties beyond number, and is searched by itself
SPARE = 2  # times that for images, of which a block is held at a time: a low limit is seldom so low
CHUNK = 16  # entries of a tile, of which most often none is kept


def sampled_limits(side: Side, product: Product, seed: int = 0) -> Float32[np.ndarray, " anchors"]:
    """For each anchor a near score that most likely more than h of its negatives reach, but not many times h."""
    count = len(side.candidates)
    size, rank = sample_and_rank(count, side.wanted)
    sampled = np.sort(np.random.default_rng(seed).choice(count, size, replace=False))
    sample = product.prepare(side.candidates[sampled])
    limits = np.empty(len(side.anchors), dtype=np.float32)
    for start, stop in blocks(len(limits), TILE_CAPTIONS):
        scores = product(product.prepare(side.anchors[start:stop]), sample)
        in_parallel(_nth_best, stop - start, scores, rank, limits[start:])
    return limits


def sample_and_rank(count: int, wanted: int) -> tuple[int, int]:
    """How many of `count` candidates are sampled, and the place among them of the score that is the limit."""
    size = min(count, max(FEWEST_SAMPLED, int(SAMPLED * count / wanted)))
    expected = size * wanted / count
    return size, min(size, int(np.ceil(expected + 3 * np.sqrt(expected) + 1)))


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
        """Anchors, rising, and their candidates and scores."""
        columns = [np.concatenate(column) for column in zip(*self._parts, strict=True)]
        order = np.argsort(columns[0], kind="stable")
        return tuple(column[order] for column in columns)


def scan_tile(
    tile: Float32[np.ndarray, "I C"], first_image: int, first_caption: int, images: Keeper, captions: Keeper
) -> None:
    """Hand each keeper what its anchors keep of a tile."""
    rows, columns = tile.shape
    buffers = [[np.empty(tile.size, kind) for kind in (np.int32, np.int32, np.float32)] for _ in range(2)]
    ends = np.empty((2, rows), dtype=np.int64)
    limits = images.limits[first_image : first_image + rows], captions.limits[first_caption : first_caption + columns]
    ranges = in_parallel(_scan, rows, tile, *limits, *buffers[0], *buffers[1], ends)
    for keeper, buffer, end in zip((images, captions), buffers, ends, strict=True):
        found = [slice(start * columns, end[start]) for start, _ in ranges]
        image, caption, score = (np.concatenate([column[part] for part in found]) for column in buffer)
        image += first_image
        caption += first_caption
        keeper.add(*((image, caption) if keeper is images else (caption, image)), score)


def proposals(
    keeper_columns: tuple[np.ndarray, ...], limits: Float32[np.ndarray, " anchors"], error: float
) -> Proposals:
    """What was kept, as proposals; `limits` count from the first anchor, 0."""
    anchors, candidates, scores = keeper_columns
    offsets = np.searchsorted(anchors, np.arange(len(limits) + 1))
    return Proposals(offsets, candidates, scores, limits.astype(np.float64) + error, error)


@njit(nogil=True, cache=True)
@no_type_check
def _nth_best(start: int, stop: int, scores: Any, rank: int, limits: Any) -> None:
    for row in range(start, stop):
        limits[row] = np.partition(scores[row], scores.shape[1] - rank)[scores.shape[1] - rank]


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
    columns = tile.shape[1]
    own = their = start * columns
    for row in range(start, stop):
        limit = image_limits[row]
        for first in range(0, columns, CHUNK):
            scores, limits = tile[row, first : first + CHUNK], caption_limits[first : first + CHUNK]
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
