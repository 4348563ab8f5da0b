"""Uncertainty of a figure, and of the difference between two runs or arms, over test images and over seeds.

An image is drawn with its captions, which are not independent of each other. Candidates are not resampled: ranks stay
those among the whole split.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from aoq.pipeline.evaluation.retrieval import ImageOf, K, Ranks

REPLICATES = 2000
LEVEL = 0.95
OUTSIDE = (100 * (1 - LEVEL) / 2, 100 * (1 + LEVEL) / 2)
NORMAL = 1.96
STUDENT = (4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""97.5 % quantiles of Student's t, for 3 to 11 seeds; more seeds have the last, which is a little too wide."""
FEWEST_SEEDS = 3
"""Fewer seeds say nothing: for two, t is 12.7."""
CHUNK = 100
"""Replicates computed at a time; each is a row of image counts in memory."""

RECALL_METRICS = [f"{direction}_r{k}" for direction in ("i2t", "t2i") for k in K] + ["rsum"]
"""All recalls, and their sum."""
Interval = tuple[float, float]
_Gains = Float64[np.ndarray, "2 seeds images"]


@dataclass(frozen=True)
class Comparison:
    """Two runs on the same queries: the difference in rsum, its 95 % interval, and its p-value.

    `p` is two-sided: the probability of a difference as large if the runs were interchangeable image by image.
    """

    difference: float
    interval: Interval
    p: float

    @property
    def chance(self) -> str:
        """Return `p` in words; the test draws too few exchanges to resolve smaller values.

        >>> Comparison(317.1, (301.2, 332.1), 0.0005).chance
        'p < 0.001'
        """
        return "p < 0.001" if self.p < 0.001 else f"p = {self.p:.2g}"


def verdict(comparison: Comparison, what: str, *, images: int, split: str = "dev", folds: int = 1) -> str:
    """Describe a comparison of two runs of one seed in a line; `what` names the difference.

    >>> verdict(Comparison(-2.4, (-6.0, 1.3), 0.21), "round two - control", images=500)
    'round two - control: -2.4 rsum [-6.0, +1.3], p = 0.21, 500 dev images, one seed: not distinguishable'
    >>> verdict(Comparison(20.0, (20.0, 20.0), 0.5), "round two - control", images=1)
    'round two - control: +20.0 rsum [+20.0, +20.0], p = 0.5, 1 dev image, one seed'
    >>> verdict(Comparison(3.2, (0.9, 5.5), 0.01), "round two - control", images=5000, split="testall", folds=5)
    'round two - control: +3.2 rsum [+0.9, +5.5], p = 0.01, 5,000 testall images in 5 folds, one seed'
    """
    low, high = comparison.interval
    gain = f"{comparison.difference:+.1f} rsum [{low:+.1f}, {high:+.1f}], {comparison.chance}"
    within = f" in {folds} folds" if folds > 1 else ""
    line = f"{what}: {gain}, {images:,} {split} image{'' if images == 1 else 's'}{within}, one seed"
    return f"{line}: not distinguishable" if low <= 0 <= high else line


def metric_intervals(
    ranks: Ranks, image_of: ImageOf, *, rng: np.random.Generator, replicates: int = REPLICATES
) -> dict[str, Interval]:
    """Return the 95 % interval of every recall and of rsum, by a bootstrap of test images."""
    recalls = np.hstack([*_drawn_recalls(_hits(ranks, image_of), image_of, replicates, rng)])
    drawn = 100 * np.column_stack([recalls, recalls.sum(axis=1)])
    low, high = np.percentile(drawn, OUTSIDE, axis=0).tolist()
    return dict(zip(RECALL_METRICS, zip(low, high, strict=True), strict=True))


def compare_runs(
    ours: Ranks, theirs: Ranks, image_of: ImageOf, *, rng: np.random.Generator, replicates: int = REPLICATES
) -> Comparison:
    """Compare our rsum to theirs: the interval draws test images, the test exchanges the runs image by image."""
    gains = _gains([ours], [theirs], image_of)
    low, high = np.percentile(100 * _drawn_recalls(gains, image_of, replicates, rng).sum(axis=0), OUTSIDE).tolist()
    of_image = _of_images(gains, image_of)[0]
    signs = rng.integers(0, 2, (replicates, len(of_image)), dtype=np.int8) * 2 - 1
    exchanged = np.abs(signs @ of_image)
    as_large = np.count_nonzero(exchanged >= abs(of_image.sum()) * (1 - 1e-12))
    return Comparison(float(of_image.sum()), (low, high), (1 + as_large) / (1 + replicates))


def rsum_intervals(
    arms: Mapping[str, Sequence[Ranks]],
    baseline: Sequence[Ranks],
    image_of: ImageOf,
    *,
    rng: np.random.Generator,
    replicates: int = REPLICATES,
) -> dict[str, Interval]:
    """Return the 95 % interval of each arm's mean rsum less the baseline's, both with the same seeds in the same order.

        mean ± sqrt(t^2 s^2 / n + 1.96^2 e^2)

    s is the standard deviation of the differences of n seeds, and t the quantile of Student's t with n - 1 degrees of
    freedom. e is the standard error of the mean over test images, by a bootstrap; a query is the same query under every
    seed and arm. Fewer than three seeds give no interval.
    """
    if len(baseline) < FEWEST_SEEDS or not arms:
        return {}
    count = len(baseline)
    by_arm = [_gains(ranks, baseline, image_of) for ranks in arms.values()]
    gains = np.stack([_of_images(one, image_of).sum(axis=1) for one in by_arm])
    means = np.stack([one.mean(axis=1) for one in by_arm], axis=1)
    errors = 100 * _drawn_recalls(means, image_of, replicates, rng).sum(axis=0).std(axis=0, ddof=1)
    quantile = STUDENT[min(count - FEWEST_SEEDS, len(STUDENT) - 1)]
    halves = np.hypot(quantile * gains.std(axis=1, ddof=1) / np.sqrt(count), NORMAL * errors)
    middles = gains.mean(axis=1)
    return dict(zip(arms, zip((middles - halves).tolist(), (middles + halves).tolist(), strict=True), strict=True))


def _drawn_recalls(
    hits: Float64[np.ndarray, "2 figures images"], image_of: ImageOf, replicates: int, rng: np.random.Generator
) -> Float64[np.ndarray, "2 replicates figures"]:
    """Compute recalls of both directions for images drawn with their captions."""
    captions, drawn = np.bincount(image_of), []
    images, (i2t, t2i) = len(captions), hits
    for start in range(0, replicates, CHUNK):
        size = min(CHUNK, replicates - start)
        times = rng.multinomial(images, np.full(images, 1 / images), size=size).astype(np.float64)
        drawn.append(np.stack([times @ i2t.T / images, times @ t2i.T / (times @ captions)[:, None]]))
    return np.concatenate(drawn, axis=1)


def _hits(ranks: Ranks, image_of: ImageOf) -> Float64[np.ndarray, "2 cutoffs images"]:
    """Count the hits at 1, 5 and 10 of each image as a query, and of its captions."""
    return np.stack([[ranks.i2t < k for k in K], [np.bincount(image_of, weights=ranks.t2i < k) for k in K]])


def _gains(ranks: Sequence[Ranks], baseline: Sequence[Ranks], image_of: ImageOf) -> _Gains:
    """Count the additional hits at 1, 5 and 10 together."""
    pairs = zip(ranks, baseline, strict=True)
    return np.stack([(_hits(ours, image_of) - _hits(theirs, image_of)).sum(axis=1) for ours, theirs in pairs], axis=1)


def _of_images(gains: _Gains, image_of: ImageOf) -> Float64[np.ndarray, "seeds images"]:
    """Return the contribution of each image and its captions to the difference in rsum."""
    i2t, t2i = gains
    return 100 * (i2t / i2t.shape[1] + t2i / len(image_of))
