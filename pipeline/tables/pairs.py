"""Pairs of an image and a caption: as rows, as keys for look-ups, and grouped into each anchor's positives."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256

import numpy as np
from jaxtyping import Bool, Int32, Int64, Integer

from aoq.pipeline.search.positives import Positives
from aoq.pipeline.search.problem import Direction

Pairs = Int32[np.ndarray, "pairs 2"]
"""Rows (image, caption)."""
TWO_SIDES = ("images", "captions")
SIDES: Mapping[Direction, tuple[str, str]] = {"i2t": ("images", "captions"), "t2i": ("captions", "images")}
"""Names of the anchors and of the candidates of a direction."""


def paired(image_of: Integer[np.ndarray, " captions"]) -> Pairs:
    """Pair each caption with its one image; a caption of no image (-1) has no pair.

    >>> paired(np.array([1, -1, 0])).tolist()
    [[1, 0], [0, 2]]
    """
    captions = np.flatnonzero(image_of >= 0)
    return np.stack([image_of[captions], captions], axis=1).astype(np.int32)


def image_of_each(pairs: Pairs, captions: int) -> Int32[np.ndarray, " captions"] | None:
    """Image of each caption, -1 if it has none; None if a caption has several.

    >>> image_of_each(np.array([[1, 0], [0, 2]], np.int32), 3)
    array([ 1, -1,  0], dtype=int32)
    """
    if np.bincount(pairs[:, 1], minlength=1).max() > 1:
        return None
    found = np.full(captions, -1, np.int32)
    found[pairs[:, 1]] = pairs[:, 0]
    return found


def pairing_sha256(pairs: Pairs, captions: int) -> str:
    """Hash data known by its pairs alone: each caption's image, or all pairs if a caption has several."""
    image_of = image_of_each(pairs, captions)
    return sha256((np.ascontiguousarray(pairs, "<i4") if image_of is None else image_of).tobytes()).hexdigest()


def positives_of(direction: Direction, pairs: Pairs, anchors: int) -> Positives:
    """Group positives by anchor, rising: the captions of images (i2t) or the images of captions (t2i)."""
    own, other = pairs.T if direction == "i2t" else pairs.T[::-1]
    return Positives.of_pairs(own, other, anchors)


def pair_keys(
    images: Integer[np.ndarray, "*#pairs"], captions: Integer[np.ndarray, "*#pairs"], caption_count: int
) -> Int64[np.ndarray, "*pairs"]:
    """Number each pair, rising by image, then by caption."""
    return images.astype(np.int64) * caption_count + captions


def listed_keys(
    direction: Direction, anchors: np.ndarray, candidates: np.ndarray, caption_count: int
) -> Int64[np.ndarray, "*pairs"]:
    """Number each pair as `pair_keys` does, from a direction's anchors and candidates."""
    sides = (anchors, candidates) if direction == "i2t" else (candidates, anchors)
    return pair_keys(sides[0], sides[1], caption_count)


def is_among(keys: Int64[np.ndarray, "*some"], ordered: Int64[np.ndarray, " all"]) -> Bool[np.ndarray, "*some"]:
    """Return whether each key is in a rising list.

    >>> is_among(np.array([3, 4]), np.array([1, 3])).tolist()
    [True, False]
    """
    if not len(ordered):
        return np.zeros(keys.shape, dtype=np.bool_)
    return ordered[np.minimum(np.searchsorted(ordered, keys), len(ordered) - 1)] == keys
