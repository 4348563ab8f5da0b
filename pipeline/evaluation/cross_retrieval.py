"""Cross-retrieval rank: how far down a positive pair falls in the direction that is worse for it (AOQ supplement)."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Float64, Int, Int64

from aoq.pipeline.evaluation.retrieval import BLOCK_BYTES
from aoq.pipeline.search.problem import own_captions

EDGES = (1, 2, 6, 11, 21, 51, 101, 201)
"""Where the histogram's intervals start; the last has no end."""


def cross_retrieval_ranks(
    similarity: Float[np.ndarray, "images captions"], image_of: Int[np.ndarray, " captions"]
) -> Float64[np.ndarray, " captions"]:
    """The rank of each caption with its image: max(w (r_i - 1) + 1, r_t), from 1.

    r_i is the pair's rank among those with another image, r_t among those with another image's caption, and
    w = (C - n) / (I - 1) says how many more of the latter there are, n being the captions of the image. With five
    captions an image w = 5, and this is the paper's max(5 r_i - 4, r_t). Ties stand before the pair.

    >>> cross_retrieval_ranks(np.array([[0.9, 0.1, 0.5], [0.2, 0.3, 0.4]]), np.array([0, 0, 1]))
    array([1., 2., 3.])
    """
    images, captions = similarity.shape
    own = similarity[image_of, np.arange(captions)]
    others = np.zeros(captions, dtype=np.int64)
    sharing = np.zeros(captions, dtype=np.int64)
    grouped = own_captions(image_of.astype(np.int32), images)
    counts = np.diff(grouped.offsets)
    rows = max(1, BLOCK_BYTES // (similarity.itemsize * captions))
    for start in range(0, images, rows):
        block = similarity[start : start + rows]
        is_own = np.arange(start, start + len(block))[:, None] == image_of[None, :]
        others += ((block >= own) & ~is_own).sum(axis=0)
        for slot in range(int(counts[start : start + rows].max(initial=0))):
            has = np.flatnonzero(counts[start : start + rows] > slot)
            caption = grouped.ids[grouped.offsets[start + has] + slot]
            sharing[caption] = ((block[has] >= own[caption, None]) & ~is_own[has]).sum(axis=1)
    weight = (captions - counts[image_of]) / max(1, images - 1)
    return np.maximum(weight * others + 1, sharing + 1.0)


def rank_histogram(ranks: Float[np.ndarray, " pairs"]) -> Int64[np.ndarray, " intervals"]:
    """How many pairs lie in each interval of `EDGES`: 1, 2 to 5, 6 to 10, ..., 201 and more.

    >>> rank_histogram(np.array([1.0, 5.0, 7.0, 999.0]))
    array([1, 1, 1, 0, 0, 0, 0, 1])
    """
    return np.histogram(ranks, bins=[*EDGES, np.inf])[0]
