"""Recall of lists, measured on sampled anchors that are also searched exactly, and the least breadth that is enough."""

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
"""Of 97.5 %: the interval covers 95 %."""
DEVIATIONS = 3 * math.sqrt(3)
"""Standard errors by which the recall of the sample must exceed the wanted one. Another sample, half as large, decides
later: the difference of both has sqrt(3) times the standard error, and three of these are hardly ever exceeded."""
STEP = 1.125
"""The breadth that is chosen is at most this factor above the least that is enough."""


def sampled_rows(count: int, size: int, seed: int) -> Int64[np.ndarray, " sample"]:
    """Draw `size` anchors of `count`, or all of them if there are no more."""
    return np.sort(np.random.default_rng(seed).choice(count, min(size, count), replace=False))


def last_true_scores(sample: Side) -> Float32[np.ndarray, "sample 1"]:
    """Score of each anchor's h-th negative. An exact score that reaches it belongs to a negative of the true list."""
    return exact_heads(sample).scores[:, -1:]


def wilson_interval(recall: float, sampled: int, count: int) -> tuple[float, float]:
    """Wilson's interval (1927) of 95 %, with the anchors as its trials.

        (p + z²/2n ± z sqrt(p(1 - p)/n + z²/4n²)) / (1 + z²/n)

    A fraction of a list varies less than a yes or no with the same mean, so the interval is wide enough however the
    entries of a list depend on each other. Of all `count` anchors the recall is known.

    >>> [round(end, 4) for end in wilson_interval(0.96, 512, 10_000)]
    [0.9393, 0.9738]
    """
    if sampled == count:
        return recall, recall
    z2 = NORMAL_QUANTILE**2 / sampled
    centre, half = recall + z2 / 2, math.sqrt(z2 * recall * (1 - recall) + z2**2 / 4)
    return max(0.0, (centre - half) / (1 + z2)), min(1.0, (centre + half) / (1 + z2))


Measure = Callable[[int], Float[np.ndarray, " sample"]]
"""Fractions found of the lists of sampled anchors, at a breadth."""


def choose_breadth(index: str, widest: int, measure: Measure, wanted: float, count: int, beyond: int = 0) -> int:
    """Find about the least breadth, wider than `beyond`, whose recall is surely `wanted` of all `count` anchors.

    Breadths are doubled until one is enough, and halved back between it and the one before.

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
        return recall - DEVIATIONS * error >= wanted

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
