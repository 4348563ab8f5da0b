"""Pairs that captions keep of each block of images, as tables, and their merge into the lists of captions.

A table is sorted by caption. The first row of each caption has image -1 and the caption's limit as its score: so a
block says itself what it left out, whichever limits it was made with.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, no_type_check

import numpy as np
import pyarrow as pa
from numba import njit

from aoq.pipeline.search.positives import offsets_of
from aoq.pipeline.search.problem import Side
from aoq.pipeline.search.proposals import Heads, known_heads
from aoq.pipeline.search.threads import in_parallel
from aoq.pipeline.search.tiles import Keeper


def pairs_table(captions: Keeper, first_image: int) -> pa.Table:
    """Collect the pairs that captions keep of a block of images."""
    offsets, images, scores = captions.kept()
    count = len(captions.limits)
    made = tuple(np.empty(count + len(images), dtype) for dtype in (np.int32, np.int32, np.float32))
    in_parallel(_write, count, offsets, images, scores, captions.limits, np.int32(first_image), made)
    return pa.table(dict(zip(("caption", "image", "score"), made, strict=True)))


def merged_heads(side: Side, first_caption: int, tables: Sequence[pa.Table]) -> Heads:
    """Find the best of the candidates that captions kept of all blocks; the side holds these captions."""
    pairs = tuple(column.to_numpy() for column in pa.concat_tables(tables).columns)
    parts, count = offsets_of(np.array([len(table) for table in tables])), len(side.anchors)
    limits, counts = np.full(count, -np.inf, np.float32), np.zeros(count, np.int64)
    in_parallel(_count, count, first_caption, parts, pairs, limits, counts)
    offsets = offsets_of(counts)
    ids, scores = np.empty(offsets[-1], np.int32), np.empty(offsets[-1], np.float32)
    in_parallel(_place, count, first_caption, parts, pairs, limits, offsets[:-1].copy(), (ids, scores))
    return known_heads(side, offsets, ids, scores, limits)


@njit(nogil=True, cache=True)
@no_type_check
def _write(
    start: int, stop: int, offsets: Any, images: Any, scores: Any, limits: Any, first_image: Any, made: Any
) -> None:
    made_captions, made_images, made_scores = made
    for caption in range(start, stop):
        place = offsets[caption] + caption
        made_captions[place], made_images[place], made_scores[place] = caption, -1, limits[caption]
        for pair in range(offsets[caption], offsets[caption + 1]):
            place += 1
            made_captions[place], made_images[place], made_scores[place] = (
                caption,
                images[pair] + first_image,
                scores[pair],
            )


@njit(nogil=True, cache=True)
@no_type_check
def _count(start: int, stop: int, first: int, parts: Any, pairs: Any, limits: Any, counts: Any) -> None:
    """Raise the limits of some captions to those of the blocks, and count the pairs that reach these."""
    captions, images, scores = pairs
    for part in range(len(parts) - 1):
        for pair in _rows_of(start + first, stop + first, captions, parts[part], parts[part + 1]):
            caption = captions[pair] - first
            if images[pair] < 0:
                limits[caption] = max(limits[caption], scores[pair])
    for part in range(len(parts) - 1):
        for pair in _rows_of(start + first, stop + first, captions, parts[part], parts[part + 1]):
            caption = captions[pair] - first
            counts[caption] += images[pair] >= 0 and scores[pair] >= limits[caption]


@njit(nogil=True, cache=True)
@no_type_check
def _place(start: int, stop: int, first: int, parts: Any, pairs: Any, limits: Any, places: Any, placed: Any) -> None:
    """Write the pairs of some captions that reach their limits, caption by caption."""
    captions, images, scores = pairs
    ids, kept = placed
    for part in range(len(parts) - 1):
        for pair in _rows_of(start + first, stop + first, captions, parts[part], parts[part + 1]):
            caption = captions[pair] - first
            if images[pair] >= 0 and scores[pair] >= limits[caption]:
                ids[places[caption]], kept[places[caption]] = images[pair], scores[pair]
                places[caption] += 1


@njit(nogil=True, cache=True)
@no_type_check
def _rows_of(start: int, stop: int, captions: Any, begin: int, end: int) -> Any:
    """Rows of the captions from `start` to before `stop` in the part from `begin` to before `end`."""
    part = captions[begin:end]
    return range(begin + np.searchsorted(part, start), begin + np.searchsorted(part, stop))
