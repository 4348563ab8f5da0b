"""Recall of lists on sampled anchors, which are also searched exactly, and how sure that figure is."""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float, Float32, Int64

from aoq.pipeline.search.exact import exact_heads
from aoq.pipeline.search.problem import Side

NORMAL_QUANTILE = 1.959964
"""Of 97.5 %: the interval covers 95 %."""


def sampled_rows(count: int, size: int, seed: int) -> Int64[np.ndarray, " sample"]:
    """Draw `size` anchors of `count`, or all of them if there are no more."""
    return np.sort(np.random.default_rng(seed).choice(count, min(size, count), replace=False))


def last_true_scores(sampled: Side) -> Float32[np.ndarray, "anchors 1"]:
    """Score of each anchor's h-th negative, by an exact search."""
    return exact_heads(sampled).scores[:, -1:]


def fraction_found(
    scores: Float32[np.ndarray, "anchors h"], last: Float32[np.ndarray, "anchors 1"]
) -> Float[np.ndarray, " anchors"]:
    """Fraction of each list that is true: an exact score that reaches the h-th true one belongs to a true negative."""
    return (scores >= last).mean(axis=1)


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
    centre = (recall + z2 / 2) / (1 + z2)
    half = NORMAL_QUANTILE * math.sqrt(recall * (1 - recall) / sampled + (z2 / 2) ** 2 / NORMAL_QUANTILE**2)
    return max(0.0, centre - half / (1 + z2)), min(1.0, centre + half / (1 + z2))
