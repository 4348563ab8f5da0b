"""Pairs of an image and a caption as numbers, to look them up."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Int64, Integer


def pair_keys(
    images: Integer[np.ndarray, " pairs"], captions: Integer[np.ndarray, " pairs"], caption_count: int
) -> Int64[np.ndarray, " pairs"]:
    """One number for each pair."""
    return images.astype(np.int64) * caption_count + captions


def is_among(keys: Int64[np.ndarray, " some"], ordered: Int64[np.ndarray, " all"]) -> Bool[np.ndarray, " some"]:
    """Which of the keys are in a rising list.

    >>> is_among(np.array([3, 4]), np.array([1, 3])).tolist()
    [True, False]
    """
    if not len(ordered):
        return np.zeros(len(keys), dtype=np.bool_)
    return ordered[np.minimum(np.searchsorted(ordered, keys), len(ordered) - 1)] == keys
