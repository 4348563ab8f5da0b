"""Recall of approximate lists, measured on a sample of anchors, and the choice of a search breadth."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

import numpy as np
from jaxtyping import Float, Float32, Int64

from aoq.pipeline.search.exact import exact_heads
from aoq.pipeline.search.problem import Side

logger = logging.getLogger(__name__)

NORMAL_QUANTILE = 1.959964
"""The 97.5 % quantile, so that the interval covers 95 %."""
_DEVIATIONS = 3 * math.sqrt(3)
"""Standard errors by which the sample's recall must exceed the wanted one. A second sample, half as large, decides
later; the difference of the two has sqrt(3) times the standard error, and three of those are hardly ever exceeded."""
STEP = 1.125
"""The chosen breadth exceeds the least sufficient one by at most this factor."""


def sampled_rows(count: int, size: int, seed: int) -> Int64[np.ndarray, " sample"]:
    """Draw `size` anchors of `count`, or all of them if there are no more."""
    return np.sort(np.random.default_rng(seed).choice(count, min(size, count), replace=False))


def last_true_scores(sample: Side) -> Float32[np.ndarray, "sample 1"]:
    """Return the score of each anchor's h-th negative; a score that reaches it belongs to the true list."""
    return exact_heads(sample).scores[:, -1:]


def wilson_interval(recall: float, sampled: int, count: int) -> tuple[float, float]:
    """Wilson's 95 % interval (1927), with anchors as trials.

        (p + z²/2n ± z sqrt(p(1 - p)/n + z²/4n²)) / (1 + z²/n)

    A fraction of a list varies less than a Bernoulli trial with the same mean, so the interval is wide enough however
    the entries of a list depend on each other. If all `count` anchors were sampled, the recall is known exactly.

    >>> [round(end, 4) for end in wilson_interval(0.96, 512, 10_000)]
    [0.9393, 0.9738]
    """
    if sampled == count:
        return recall, recall
    z2 = NORMAL_QUANTILE**2 / sampled
    centre, half = recall + z2 / 2, math.sqrt(z2 * recall * (1 - recall) + z2**2 / 4)
    return max(0.0, (centre - half) / (1 + z2)), min(1.0, (centre + half) / (1 + z2))


Measure = Callable[[int], Float[np.ndarray, " sample"]]
"""Maps a breadth to the fraction found of each sampled anchor's list."""


def choose_breadth(index: str, widest: int, measure: Measure, wanted: float, count: int, beyond: int = 0) -> int:
    """Find roughly the least breadth above `beyond` whose recall is `wanted` with high confidence.

    Breadths are doubled until one suffices; bisection then narrows the last step.

    Raises:
        ValueError: if the widest is not enough.
    """
    recall = 0.0

    def is_enough(breadth: int) -> bool:
        nonlocal recall
        found = measure(breadth)
        recall, sampled = float(found.mean()), len(found)
        logger.info("%s=%d finds %.2f%% on %d anchors", index, breadth, 100 * recall, sampled)
        if sampled == count:
            return recall >= wanted
        error = float(found.std(ddof=1)) * math.sqrt((count - sampled) / (count - 1) / sampled)
        return recall - _DEVIATIONS * error >= wanted

    narrow, wide = beyond, min(max(beyond + 1, math.ceil(STEP * beyond)), widest)
    while not is_enough(wide):
        if wide == widest:
            raise ValueError(
                f"{index}={wide} finds {recall:.1%} at its widest, and {wanted:.1%} are wanted beyond the sample's "
                "errors; lower the recall floor, or search exactly."
            )
        narrow, wide = wide, min(2 * wide, widest)
    while wide > max(narrow + 1, STEP * narrow):
        between = (narrow + wide) // 2
        narrow, wide = (narrow, between) if is_enough(between) else (between, wide)
    return wide
