"""Pairs of an image and a caption: as rows, as numbers to look them up, and as each anchor's positives."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from jaxtyping import Bool, Int32, Int64, Integer

from aoq.pipeline.search.problem import Direction, Positives

Pairs = Int32[np.ndarray, "pairs 2"]
"""Rows (image, caption)."""
SIDES: Mapping[Direction, tuple[str, str]] = {"i2t": ("images", "captions"), "t2i": ("captions", "images")}
"""What the anchors and the candidates of a direction are."""


def paired(image_of: Integer[np.ndarray, " captions"]) -> Pairs:
    """The pairs of captions of one image each; a caption of no image (-1) has none.

    >>> paired(np.array([1, -1, 0])).tolist()
    [[1, 0], [0, 2]]
    """
    captions = np.flatnonzero(image_of >= 0)
    return np.stack([image_of[captions], captions], axis=1).astype(np.int32)


def positives_of(direction: Direction, pairs: Pairs, anchors: int) -> Positives:
    """Each anchor's positives, rising: the captions of images (i2t) or the images of captions (t2i)."""
    own, other = pairs.T if direction == "i2t" else pairs.T[::-1]
    return Positives.of_pairs(own, other, anchors)


def pair_keys(
    images: Integer[np.ndarray, "*#pairs"], captions: Integer[np.ndarray, "*#pairs"], caption_count: int
) -> Int64[np.ndarray, "*pairs"]:
    """One number for each pair, rising by image, then by caption."""
    return images.astype(np.int64) * caption_count + captions


def listed_keys(
    direction: Direction, anchors: np.ndarray, candidates: np.ndarray, caption_count: int
) -> Int64[np.ndarray, "*pairs"]:
    """The same of pairs as a direction lists them."""
    sides = (anchors, candidates) if direction == "i2t" else (candidates, anchors)
    return pair_keys(sides[0], sides[1], caption_count)


def is_among(keys: Int64[np.ndarray, "*some"], ordered: Int64[np.ndarray, " all"]) -> Bool[np.ndarray, "*some"]:
    """Which of the keys are in a rising list.

    >>> is_among(np.array([3, 4]), np.array([1, 3])).tolist()
    [True, False]
    """
    if not len(ordered):
        return np.zeros(keys.shape, dtype=np.bool_)
    return ordered[np.minimum(np.searchsorted(ordered, keys), len(ordered) - 1)] == keys
