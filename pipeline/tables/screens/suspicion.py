"""Suspicion that a listed negative is a false one, and FNE's posterior probability that it matches.

FNE: Your Negative May not Be True Negative (Li et al., ACM MM 2023, arXiv 2308.04380).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from jaxtyping import Float32, Float64, UInt32

from aoq.pipeline.config.screen import CERTAIN
from aoq.pipeline.search.problem import Direction
from aoq.pipeline.tables.contents import TableContents
from aoq.pipeline.tables.screens.knowledge import Context, entry_blocks
from aoq.pipeline.tables.screens.view import bit

Suspicion = Float32[np.ndarray, "anchors h"]
Scores = Float32[np.ndarray, " scores"]
TINY = 1e-6


def rate_suspicion(context: Context, direction: Direction, flags: UInt32[np.ndarray, "anchors h"]) -> Suspicion:
    """Suspicion from 0 to 1; 0 for padding. The first of these that applies:

    1 if people judged that the pair matches, or if it is the same text; the judge's probability if there is one; the
    fraction of the set suspecting rules that the pair meets, or its posterior if that is larger.
    """
    screen, table = context.screen, context.table
    met = np.zeros(flags.shape, np.float32)
    for rule in screen.suspecting:
        met += flags & bit(rule) > 0
    suspicion = met / np.float32(max(1, len(screen.suspecting)))
    posterior = None
    if screen.match_prior is not None and table[direction].h:
        posterior = match_posterior(table, direction, screen.match_prior)
    for entries in entry_blocks(direction, table[direction]):
        places = entries.anchors, entries.places
        if posterior is not None:
            suspicion[places] = np.maximum(suspicion[places], posterior(entries.scores))
        if screen.judgements is not None:
            judged = context.judged(entries)
            suspicion[places] = np.where(np.isnan(judged), suspicion[places], judged)
    suspicion[flags & sum(bit(rule) for rule in CERTAIN) > 0] = 1
    return suspicion


def match_posterior(table: TableContents, direction: Direction, prior: float) -> Callable[[Scores], Scores]:
    """Estimate the probability that a listed negative of score s matches, by Bayes' rule, as in FNE:

        P(match | s) = prior N(s; m+, v+) / (prior N(s; m+, v+) + (1 - prior) N(s; m-, v-))

    m+ and v+ are the mean and variance of the positives' scores, m- and v- those of the direction's listed negatives.
    Two normal densities of different width cross twice. Beyond the second crossing, a tail, the ratio would turn again,
    so it is kept rising with s. The official code takes m+ and m- of confident pairs and of a batch's hardest negatives
    during training; its prior is 1 / 10,000, that of a random pair.

    Raises:
        ValueError: if the table has no scores of positives or of listed negatives.
    """
    positives, listed = _finite(table.t2i.positive_score), _finite(table[direction].scores)
    if not len(positives):  # nor captions, as in a table of one direction
        positives = _finite(table.i2t.positive_score)
    if min(len(positives), len(listed)) < 2:
        raise ValueError(
            "match_prior compares the positives' scores with the listed ones, and the table has "
            f"{len(positives)} and {len(listed)} of {direction}; leave it out, or mine a table with all pairs."
        )
    of_match, of_listed = _normal(positives), _normal(listed)
    odds, (low, high) = np.log(prior) - np.log1p(-prior), _rising_between(of_match, of_listed)

    def posterior(scores: Scores) -> Scores:
        clipped = np.clip(scores.astype(np.float64), low, high)
        logarithm = odds + _log_density(clipped, *of_match) - _log_density(clipped, *of_listed)
        return (1 / (1 + np.exp(-np.clip(logarithm, -700, 700)))).astype(np.float32)

    return posterior


def _finite(scores: np.ndarray) -> np.ndarray:
    return scores[np.isfinite(scores)].astype(np.float64)


def _normal(scores: np.ndarray) -> tuple[float, float]:
    """Mean and variance; equal scores get a small variance."""
    return float(scores.mean()), max(float(scores.var()), TINY)


def _log_density(
    scores: Float64[np.ndarray, " scores"], mean: float, variance: float
) -> Float64[np.ndarray, " scores"]:
    return -0.5 * (np.log(variance) + (scores - mean) ** 2 / variance)


def _rising_between(of_match: tuple[float, float], of_listed: tuple[float, float]) -> tuple[float, float]:
    """Range in which log N(s; m+, v+) - log N(s; m-, v-), a parabola, rises: up to its top or from its minimum on."""
    (mean, variance), (listed_mean, listed_variance) = of_match, of_listed
    bend = 1 / listed_variance - 1 / variance  # the second derivative
    if bend == 0:
        return (-np.inf, np.inf)
    turn = (listed_mean / listed_variance - mean / variance) / bend
    return (turn, np.inf) if bend > 0 else (-np.inf, turn)
