"""The pairs that a slow model rescores: all listed pairs of both directions, and the positives, each once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int32, Int64

from aoq.pipeline.search.problem import Direction, blocks
from aoq.pipeline.tables.pairs import Pairs, listed_keys, pair_keys

IMAGE_BLOCK, CAPTION_BLOCK = 4096, 2048
"""Images and captions per unit of work; it keeps the images' codes in memory."""
PAIR_TILE = 128
SEARCH_BLOCK = 2048
"""Candidates per unit of the full search."""
TILES = {"images": IMAGE_BLOCK, "captions": CAPTION_BLOCK, "pairs": PAIR_TILE, "search": SEARCH_BLOCK}

Block = tuple[int, int]


@dataclass(frozen=True)
class Shortlist:
    """Candidates of every image and of every caption, padded with -1, and the true pairs."""

    captions: Int32[np.ndarray, "images depth_captions"]
    images: Int32[np.ndarray, "captions depth_images"]
    positives: Pairs

    def __getitem__(self, direction: Direction) -> Int32[np.ndarray, "anchors depth"]:
        return self.captions if direction == "i2t" else self.images

    def blocks(self, direction: Direction) -> list[Block]:
        """Return the start and stop of each unit's anchors."""
        return blocks(len(self[direction]), IMAGE_BLOCK if direction == "i2t" else CAPTION_BLOCK)

    def keys(self, images: Block, captions: Block) -> Int64[np.ndarray, " pairs"]:
        """Return the pairs of two blocks to score, each as image * captions + caption, rising."""
        listed = [self._inside("i2t", images, captions), self._inside("t2i", captions, images)]
        own = self.positives
        inside = ((own >= [images[0], captions[0]]) & (own < [images[1], captions[1]])).all(axis=1)
        return np.unique(np.concatenate([*listed, pair_keys(own[inside, 0], own[inside, 1], len(self.images))]))

    def row_keys(self, direction: Direction, block: Block) -> Int64[np.ndarray, "anchors depth"]:
        """Return the listed pairs of a block of anchors; the key of padding is -1."""
        ids, anchors = self[direction][slice(*block)], np.arange(*block)[:, None]
        return np.where(ids < 0, -1, listed_keys(direction, anchors, ids, len(self.images)))

    def _inside(self, direction: Direction, anchors: Block, candidates: Block) -> Int64[np.ndarray, " pairs"]:
        ids = self[direction][slice(*anchors)]
        inside = (ids >= candidates[0]) & (ids < candidates[1])
        return self.row_keys(direction, anchors)[inside]
