"""How sure the difference between two arms is: a bootstrap over seeds and over queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float64, Int, Int64

from pipeline.evaluation.retrieval import K, Ranks

REPLICATES = 2000
LEVEL = 0.95
CHUNK = 100
"""Replicates at a time: as many rows of image counts are in memory."""

Hits = Float64[np.ndarray, "2 images"]


def rsum_intervals(
    arms: Mapping[str, Sequence[Ranks]],
    baseline: Sequence[Ranks],
    image_of: Int[np.ndarray, " captions"],
    *,
    rng: np.random.Generator,
    replicates: int = REPLICATES,
) -> dict[str, tuple[float, float]]:
    """The 95 % interval of each arm's mean rsum less the baseline's, both with the same seeds in the same order.

    A replicate draws seeds with replacement, and test images with replacement, each with its captions: both change
    from one trial to another, and a query is the same query under every seed and arm (the pigeonhole bootstrap, Owen
    2007). Differences are paired by seed and query; the percentiles of the replicates are the interval. Candidates are
    not drawn anew: ranks are those among the whole split. With n seeds their part of the spread is too small by
    sqrt(1 - 1/n) or so, and with one seed it is missing: the interval is then about the queries alone.
    """
    differences = {name: _differences(ranks, baseline, image_of) for name, ranks in arms.items()}
    captions = np.bincount(image_of, minlength=len(baseline[0].i2t)).astype(np.float64)
    drawn: dict[str, list[Float64[np.ndarray, " replicates"]]] = {name: [] for name in arms}
    seeds, images = len(baseline), len(captions)
    for start in range(0, replicates, CHUNK):
        size = min(CHUNK, replicates - start)
        times = rng.multinomial(images, np.full(images, 1 / images), size=size).astype(np.float64)
        share = rng.multinomial(seeds, np.full(seeds, 1 / seeds), size=size) / seeds
        for name, (i2t, t2i) in differences.items():
            rsum = 100 * (times @ i2t.T / images + times @ t2i.T / (times @ captions)[:, None])
            drawn[name].append((share * rsum).sum(axis=1))
    outside = 100 * (1 - LEVEL) / 2
    found = {name: np.percentile(np.concatenate(parts), [outside, 100 - outside]) for name, parts in drawn.items()}
    return {name: (float(low), float(high)) for name, (low, high) in found.items()}


def _differences(
    ranks: Sequence[Ranks], baseline: Sequence[Ranks], image_of: Int[np.ndarray, " captions"]
) -> tuple[Float64[np.ndarray, "seeds images"], Float64[np.ndarray, "seeds images"]]:
    """How many more hits at 1, 5 and 10 together: of each image as a query, and of its captions."""
    pairs = list(zip(ranks, baseline, strict=True))
    i2t = [_hits(ours.i2t) - _hits(theirs.i2t) for ours, theirs in pairs]
    t2i = [
        np.bincount(image_of, weights=_hits(ours.t2i) - _hits(theirs.t2i), minlength=len(ours.i2t))
        for ours, theirs in pairs
    ]
    return np.stack(i2t), np.stack(t2i)


def _hits(ranks: Int64[np.ndarray, " queries"]) -> Float64[np.ndarray, " queries"]:
    return np.sum([ranks < k for k in K], axis=0).astype(np.float64)
