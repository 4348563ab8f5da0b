"""From which score on a candidate may be among an anchor's h best: a random sample of the other side tells."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float32

from aoq.pipeline.search.problem import Side, blocks
from aoq.pipeline.search.products.choice import Product
from aoq.pipeline.search.threads import in_parallel
from aoq.pipeline.search.tiles import TILE_CAPTIONS, TILE_IMAGES

EXPECTED = 2.0, 6.0  # of an anchor's h best, one in 20 is expected in the sample, but so many at least, and at most
FEWEST_SAMPLED = 1024
DEVIATIONS = 2.5  # beyond what is expected: one limit in 160 is too high, and that anchor is searched by itself


def sampled_limits(side: Side, product: Product, seed: int = 0) -> Float32[np.ndarray, " anchors"]:
    """For each anchor a near score that most likely more than h of its negatives reach, but not many times h."""
    count = len(side.candidates)
    size, rank = sample_and_rank(count, side.wanted)
    sampled = np.sort(np.random.default_rng(seed).choice(count, size, replace=False))
    sample = product.prepare(side.candidates[sampled])
    limits = np.empty(len(side.anchors), dtype=np.float32)
    for start, stop in blocks(len(limits), max(1, TILE_IMAGES * TILE_CAPTIONS // size)):
        scores = product(product.prepare(side.anchors[start:stop]), sample)
        in_parallel(_nth_best, stop - start, scores, rank, limits[start:])
    return limits


def sample_and_rank(count: int, wanted: int) -> tuple[int, int]:
    """How many of `count` candidates are sampled, and the place among them of the score that is the limit."""
    size = min(count, max(FEWEST_SAMPLED, int(np.clip(wanted / 20, *EXPECTED) * count / wanted)))
    expected = size * wanted / count
    return size, min(size, int(np.ceil(expected + DEVIATIONS * np.sqrt(expected) + 1)))


def _nth_best(start: int, stop: int, scores: np.ndarray, rank: int, limits: np.ndarray) -> None:
    place = scores.shape[1] - rank
    limits[start:stop] = np.partition(scores[start:stop], place, axis=1)[:, place]
