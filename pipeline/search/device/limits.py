"""Limits of anchors on a device: near scores that more than h of their negatives should reach, but few others."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float32
from torch import Tensor

from aoq.pipeline.search.device.arithmetic import rounded
from aoq.pipeline.search.device.room import Tile
from aoq.pipeline.search.device.vectors import Vectors
from aoq.pipeline.search.problem import Side, blocks

EXPECTED = 12.0  # of an anchor's wanted candidates, in the sample
DEVIATIONS = 3.5  # beyond what is expected: one limit in 3,000 is too high, and its anchor is searched again
FEWEST_SAMPLED = 1024


def sample_and_rank(count: int, wanted: int) -> tuple[int, int]:
    """Number of candidates to sample of `count`, and the rank among them of the score that becomes the limit.

    >>> sample_and_rank(566_435, 305)
    (22285, 26)
    """
    size = min(count, max(FEWEST_SAMPLED, int(EXPECTED * count / wanted)))
    expected = size * wanted / count
    return size, min(size, int(np.ceil(expected + DEVIATIONS * np.sqrt(expected) + 1)))


def limits_of(side: Side, vectors: tuple[Vectors, Vectors], tile: Tile, error: float) -> Float32[Tensor, " anchors"]:
    """Take the near score of a certain rank in a sample, less `error`."""
    (anchors, candidates), count = vectors, len(side.candidates)
    sampled, rank = sample_and_rank(count, side.wanted)
    drawn = np.sort(np.random.default_rng(0).choice(count, sampled, replace=False))
    sample = rounded(candidates.rows(torch.from_numpy(drawn).to(candidates.device)), candidates.precision)
    ranges = blocks(len(side.anchors), max(1, tile.images * tile.captions // sampled))
    best = [(block @ sample.T).topk(rank).values[:, -1].float() for block in anchors.rounded(ranges)]
    return torch.cat(best) - error  # an h-th score this close to its limit would not clear the certificate's bound
