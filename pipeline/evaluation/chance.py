"""Chance: the rsum of random ranks, which an untrained model reaches."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from aoq.pipeline.evaluation.retrieval import Identity, ImageOf, K
from aoq.pipeline.search.positives import positive_pairs_of

PERFECT = 200.0 * len(K)
DEVIATIONS = 2
"""An rsum up to this many standard deviations above the mean is near chance: a training reports its best epoch. With
100 images or more that is up to 1.5 times the mean."""


class Chance(NamedTuple):
    """Mean rsum if every order of the candidates is equally likely, and a bound on its standard deviation."""

    rsum: float
    deviation: float

    def explains(self, rsum: float) -> bool:
        """Return whether this rsum is near chance; False if there are too few candidates to tell.

        >>> chance = chance_of(np.arange(100))
        >>> chance.explains(37.4), chance.explains(60.0)
        (True, False)
        """
        return rsum <= self.rsum + DEVIATIONS * self.deviation < PERFECT


def chance_of(image_of: ImageOf, identity: Identity | None = None) -> Chance:
    """Compute the chance of a pairing. Queries count as independent, and both directions as fully correlated.

    Of N candidates, n of them right, one is among the first K in random order with probability 1 - C(N-n, K) / C(N, K).

    >>> chance_of(np.arange(10)).rsum  # 10, 50 and 100 %, in both directions
    320.0
    """
    pairs = positive_pairs_of(image_of, identity)
    images, captions = int(pairs[:, 0].max()) + 1 if identity is None else len(identity), len(image_of)
    rsum, deviation = 0.0, 0.0
    for column, queries, candidates in ((0, images, captions), (1, captions, images)):
        right = np.bincount(pairs[:, column], minlength=queries)
        by_k = [1 - _missed(right, candidates, k) for k in K]
        hits = np.sum(by_k, axis=0)
        squares = sum(by_k[place] * (2 * (len(K) - place) - 1) for place in range(len(K)))  # a hit at 1 is one at 5
        rsum += 100 * hits.mean()
        deviation += 100 * np.sqrt((squares - hits**2).mean() / queries)
    return Chance(float(rsum), float(deviation))


def _missed(right: np.ndarray, candidates: int, k: int) -> np.ndarray:
    """Return the probability that none of the right candidates is among the first k."""
    drawn = np.arange(min(k, candidates))[:, None]
    return np.clip((candidates - right - drawn) / (candidates - drawn), 0, 1).prod(axis=0)
