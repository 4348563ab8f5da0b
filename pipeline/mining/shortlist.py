"""Which pairs a slow model scores anew: those that either direction lists, and the positives, each once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int32, Int64

from aoq.pipeline.search.problem import Direction

IMAGE_BLOCK, CAPTION_BLOCK = 4096, 2048
"""A unit of work is the pairs of so many images with so many captions; the images' codes stay in memory meanwhile."""
PAIR_TILE = 128
SEARCH_BLOCK = 2048
"""Candidates of a unit of the full search."""
TILES = {"images": IMAGE_BLOCK, "captions": CAPTION_BLOCK, "pairs": PAIR_TILE, "search": SEARCH_BLOCK}

Block = tuple[int, int]


@dataclass(frozen=True)
class Shortlist:
    """The candidates of every image and of every caption, padded with -1, and the image of each caption."""

    captions: Int32[np.ndarray, "images depth_captions"]
    images: Int32[np.ndarray, "captions depth_images"]
    image_of: Int32[np.ndarray, " captions"]

    def anchors(self, direction: Direction) -> int:
        return len(self.captions if direction == "i2t" else self.images)

    def keys(self, images: Block, captions: Block) -> Int64[np.ndarray, " pairs"]:
        """The pairs to score of two blocks, each as image * captions + caption, rising."""
        found = [self._inside("i2t", images, captions), self._inside("t2i", captions, images)]
        rows = np.arange(*captions)
        own = self.image_of[slice(*captions)]
        there = (own >= images[0]) & (own < images[1])
        return np.unique(np.concatenate([*found, self.key(own[there], rows[there])]))

    def key(self, image: np.ndarray, caption: np.ndarray) -> Int64[np.ndarray, "*axes"]:
        return image.astype(np.int64) * len(self.images) + caption

    def row_keys(self, direction: Direction, block: Block) -> Int64[np.ndarray, "anchors depth"]:
        """The listed pairs of a block of anchors; padding gives no key of any pair."""
        ids = (self.captions if direction == "i2t" else self.images)[slice(*block)]
        anchors = np.arange(*block)[:, None]
        keys = self.key(anchors, ids) if direction == "i2t" else self.key(ids, anchors)
        return np.where(ids < 0, -1, keys)

    def _inside(self, direction: Direction, anchors: Block, candidates: Block) -> Int64[np.ndarray, " pairs"]:
        ids = (self.captions if direction == "i2t" else self.images)[slice(*anchors)]
        inside = (ids >= candidates[0]) & (ids < candidates[1])
        return self.row_keys(direction, anchors)[inside]
