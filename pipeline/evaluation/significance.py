"""How sure a figure is, and the difference between two runs or arms: bootstraps over test images and over seeds.

An image is drawn with its captions, which are not independent of each other. Candidates are not drawn anew: ranks stay
those among the whole split.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int, Int64

from aoq.pipeline.evaluation.retrieval import K, Ranks

REPLICATES = 2000
LEVEL = 0.95
OUTSIDE = (100 * (1 - LEVEL) / 2, 100 * (1 + LEVEL) / 2)
CHUNK = 100
"""Replicates at a time: as many rows of image counts are in memory."""

METRICS = [f"{direction}_r{k}" for direction in ("i2t", "t2i") for k in K] + ["rsum"]
"""Every recall, and their sum."""
Interval = tuple[float, float]


@dataclass(frozen=True)
class Comparison:
    """Two runs on the same queries: the difference in rsum, its 95 % interval, and how surprising it is.

    `p` is two-sided: how often the difference would be as large if, image by image, the runs were interchangeable.
    """

    difference: float
    interval: Interval
    p: float


def metric_intervals(
    ranks: Ranks, image_of: Int[np.ndarray, " captions"], *, rng: np.random.Generator, replicates: int = REPLICATES
) -> dict[str, Interval]:
    """The 95 % interval of every recall and of rsum, by drawing test images."""
    captions = np.bincount(image_of, minlength=len(ranks.i2t)).astype(np.float64)
    i2t = np.stack([ranks.i2t < k for k in K]).astype(np.float64)
    t2i = np.stack([np.bincount(image_of, weights=ranks.t2i < k, minlength=len(captions)) for k in K])
    drawn = []
    for times in _drawings(len(captions), replicates, rng):
        recalls = np.concatenate([times @ i2t.T / len(captions), times @ t2i.T / (times @ captions)[:, None]], axis=1)
        drawn.append(100 * np.concatenate([recalls, recalls.sum(axis=1, keepdims=True)], axis=1))
    low, high = np.percentile(np.concatenate(drawn), OUTSIDE, axis=0)
    return {name: (float(a), float(b)) for name, a, b in zip(METRICS, low, high, strict=True)}


def compare_runs(
    ours: Ranks,
    theirs: Ranks,
    image_of: Int[np.ndarray, " captions"],
    *,
    rng: np.random.Generator,
    replicates: int = REPLICATES,
) -> Comparison:
    """Our rsum less theirs: an interval by drawing test images, and a test by exchanging the runs image by image."""
    interval = rsum_intervals({"ours": [ours]}, [theirs], image_of, rng=rng, replicates=replicates)["ours"]
    i2t, t2i = _differences([ours], [theirs], image_of)
    of_image = 100 * (i2t[0] / i2t.shape[1] + t2i[0] / len(image_of))
    signs = rng.integers(0, 2, (replicates, len(of_image)), dtype=np.int8) * 2 - 1
    exchanged = np.abs(signs @ of_image)
    as_large = np.count_nonzero(exchanged >= abs(of_image.sum()) * (1 - 1e-12))
    return Comparison(float(of_image.sum()), interval, (1 + as_large) / (1 + replicates))


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
    2007). Differences are paired by seed and query; the percentiles of the replicates are the interval. With n seeds
    their part of the spread is too small by sqrt(1 - 1/n) or so, and with one seed it is missing: the interval is then
    about the queries alone.
    """
    differences = {name: _differences(ranks, baseline, image_of) for name, ranks in arms.items()}
    captions = np.bincount(image_of, minlength=len(baseline[0].i2t)).astype(np.float64)
    drawn: dict[str, list[Float64[np.ndarray, " replicates"]]] = {name: [] for name in arms}
    seeds, images = len(baseline), len(captions)
    for times in _drawings(images, replicates, rng):
        share = rng.multinomial(seeds, np.full(seeds, 1 / seeds), size=len(times)) / seeds
        for name, (i2t, t2i) in differences.items():
            rsum = 100 * (times @ i2t.T / images + times @ t2i.T / (times @ captions)[:, None])
            drawn[name].append((share * rsum).sum(axis=1))
    found = {name: np.percentile(np.concatenate(parts), OUTSIDE) for name, parts in drawn.items()}
    return {name: (float(low), float(high)) for name, (low, high) in found.items()}


def _drawings(
    images: int, replicates: int, rng: np.random.Generator
) -> Iterator[Float64[np.ndarray, "replicates images"]]:
    """How often each image is drawn, some replicates at a time."""
    for start in range(0, replicates, CHUNK):
        size = min(CHUNK, replicates - start)
        yield rng.multinomial(images, np.full(images, 1 / images), size=size).astype(np.float64)


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
