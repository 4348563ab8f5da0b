"""Fit a search into a device's memory: choose the vectors that stay there and the size of tiles."""

from __future__ import annotations

from typing import NamedTuple

import torch

from aoq.pipeline.search.device.arithmetic import Precision
from aoq.pipeline.search.device.vectors import bytes_on_device
from aoq.pipeline.search.problem import Problem

IMAGES, CAPTIONS = 16384, 16384
FEWEST = 256
USED = 0.9  # of a GPU's free memory; the rest is for libraries and for gaps
VECTORS_SHARE = 0.6  # of the room; the rest is for tiles and lists
ENTRY_BYTES = 8  # of a tile: its score, in float32 at most, and what finds the pairs to keep
PAIR_BYTES = 64  # of a pair that is kept, while it is sorted
BLOCK_BYTES = 24  # of a dimension of a block's vector: given and rounded, worked on, ready and on its way
KEPT = 3  # times an anchor's wanted candidates: more than most anchors keep


class Tile(NamedTuple):
    """Images and captions that are multiplied with each other at a time."""

    images: int
    captions: int

    @property
    def smaller(self) -> Tile:
        """Half as large, on the longer side; the smallest is its own half."""
        if self.captions >= self.images:
            return Tile(self.images, _half(self.captions))
        return Tile(_half(self.images), self.captions)


def _half(count: int) -> int:
    return max(min(FEWEST, count), count // 2)


class Room(NamedTuple):
    """A plan: whether images and captions stay on the device, the tiles, and the largest that more memory allows."""

    images: bool
    captions: bool
    tile: Tile
    largest: Tile


def plan_room(problem: Problem, precision: Precision, free: int) -> Room | None:
    """Share out the free bytes; None if they are too few for the smallest tiles.

    Captions come first: every block of images meets all of them, but its own images only once.
    """
    (images, dimensions), captions = problem.images.shape, len(problem.captions)
    left, stays = free * VECTORS_SHARE, {}
    for side, count in (("captions", captions), ("images", 0 if problem.one_set else images)):
        size = bytes_on_device(count, dimensions, precision)
        stays[side] = size <= left
        left -= size if stays[side] else 0
    if problem.one_set:
        stays["images"] = stays["captions"]
    left += free * (1 - VECTORS_SHARE)
    tile = largest = Tile(min(IMAGES, images), min(CAPTIONS, captions))
    while tile_bytes(problem, tile) > left:
        if tile == tile.smaller:
            return None
        tile = tile.smaller
    return Room(stays["images"], stays["captions"], tile, largest)


def tile_bytes(problem: Problem, tile: Tile) -> int:
    """Bytes of a tile, its blocks of vectors, and what the anchors keep of its images."""
    share = tile.images / len(problem.images)
    kept = sum(KEPT * size.wanted * size.anchors * share for size in map(problem.size, problem.directions))
    moved = BLOCK_BYTES * sum(tile) * problem.images.shape[1]
    return int(ENTRY_BYTES * tile.images * tile.captions + PAIR_BYTES * kept + moved)


def free_bytes(device: torch.device, problem: Problem) -> int:
    """Bytes that the search may use: what the device has left or torch holds unused; on a CPU the problem's limit."""
    if device.type != "cuda":
        return problem.memory
    held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(USED * (torch.cuda.mem_get_info(device)[0] + held))
