"""Captions' lists, from the pairs that they kept of every block of images."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from jaxtyping import Float32, Int64

from aoq.pipeline.search.positives import offsets_of
from aoq.pipeline.search.problem import BLOCK, Problem, blocks
from aoq.pipeline.search.proposals import Heads
from aoq.pipeline.search.ranges import read_rows
from aoq.pipeline.search.rows import read_all
from aoq.pipeline.search.store import Store
from aoq.pipeline.search.streamed.block import PAIR_BYTES, Lists, Sizes, search_block
from aoq.pipeline.search.streamed.limits import read_limits
from aoq.pipeline.search.streamed.strips import KEPT, OWN, side_of, to_lists

MANY = 8
"""Times h: about as many pairs are merged for a caption at most."""
AGAIN = 4096
"""Captions that are searched again at a time."""


def merge(start: int, stop: int, device: str, problem: Problem, store: Store) -> list[pa.Table]:
    """Take the best of what these captions kept; a caption that kept fewer than h, or too many, is searched again."""
    size, limits = problem.size("t2i"), read_limits(store, len(problem.captions))[start:stop]
    shape = stop - start, size.h
    found = Heads(
        np.full(shape, -1, np.int32), np.full(shape, -np.inf, np.float32), np.nextafter(limits, np.float32(-np.inf))
    )
    for first, last in blocks(stop - start, max(1, problem.memory // (PAIR_BYTES * MANY * size.wanted))):
        kept = read_all(store, KEPT, size.candidates, ("caption", start + first, start + last))
        put_best(found, kept, start, first, last)
    failing = np.flatnonzero(found.ids[:, -1] < 0)
    for first, last in blocks(len(failing), AGAIN):
        found.put(failing[first:last], search_again(start + failing[first:last], device, problem))
    return [to_lists(found, _lowest(start, stop, size.candidates, store), start)]


def put_best(found: Heads, kept: pa.Table, start: int, first: int, last: int) -> None:
    """Fill the lists from `first` to before `last` with the best of the pairs; captions begin at `start`."""
    caption, image, score = (kept[name].to_numpy() for name in ("caption", "image", "score"))
    order = np.lexsort((image, -score, caption))
    caption, image, score = caption[order] - start - first, image[order], score[order]
    offsets = offsets_of(np.bincount(caption, minlength=last - first))
    rank = np.arange(len(caption)) - offsets[caption]
    crowded = np.bincount(caption[np.isinf(score)], minlength=last - first) > 0
    best = (rank < found.ids.shape[1]) & ~crowded[caption]
    found.ids[first + caption[best], rank[best]] = image[best]
    found.scores[first + caption[best], rank[best]] = score[best]


def search_again(captions: Int64[np.ndarray, " some"], device: str, problem: Problem) -> Heads:
    """Search some captions among all images."""
    side = side_of(problem, "t2i", captions, _gather(problem.captions, captions))
    lists, sizes = Lists(side), Sizes.of(problem.memory, len(captions), side.anchors.shape[1])
    for _ in search_block(lists, side, problem.images, None, sizes, device):
        pass
    return lists.found


def _gather(vectors: np.ndarray, rows: Int64[np.ndarray, " some"]) -> Float32[np.ndarray, "some D"]:
    """Read some rows, rising, in the blocks that they lie in."""
    parts = []
    for block in np.unique(rows // BLOCK):
        first = int(block) * BLOCK
        inside = rows[rows // BLOCK == block] - first
        parts.append(read_rows(vectors, first, min(first + BLOCK, len(vectors)))[inside])
    return np.concatenate(parts)


def _lowest(start: int, stop: int, images: int, store: Store) -> Float32[np.ndarray, " captions"]:
    """Score of each caption's lowest-scoring positive; NaN if it has none."""
    own = read_all(store, OWN, images, ("caption", start, stop))
    lowest = np.full(stop - start, np.nan, np.float32)
    np.fmin.at(lowest, own["caption"].to_numpy() - start, own["score"].to_numpy())
    return lowest
