"""Ranks of the lists that draws come from, and their hardness relative to in-batch negatives."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool

from aoq.pipeline.config.tables import Sampling
from aoq.pipeline.search.problem import Direction

HARDER = 10.0
"""`hardness = "auto"` draws negatives this many times harder than a batch's hardest one."""
FEWEST = 4
"""Fewest ranks that it draws from, so that an anchor's negatives change from epoch to epoch."""
WHAT = {"i2t": "captions", "t2i": "images"}


def expected_rank(candidates: int, batch: int, harder: float) -> int:
    """Return the rank of a negative that is `harder` times harder than a batch's hardest.

    Of C candidates the hardest negative in a random batch of B has rank C / B on average.

    >>> expected_rank(566_435, 128, 15.0), expected_rank(30_000, 64, 15.0)
    (295, 31)
    """
    return round(candidates / (batch * harder))


@dataclass(frozen=True)
class DrawnRanks:
    """Ranks `start` to `stop`, from 0, of lists of candidates, compared with batches of a size.

    >>> print(DrawnRanks("i2t", 0, 60, candidates=30_000, batch=64))
    the hardest in a batch of 64 has rank 469 of 30,000 captions; draws from the first 60: about 7.8 times harder
    >>> print(DrawnRanks("t2i", 0, 60, candidates=600, batch=64))
    the hardest in a batch of 64 has rank 9 of 600 images; draws from the first 60: about 84% of them are easier
    """

    direction: Direction
    start: int
    stop: int
    candidates: int
    batch: int

    @property
    def batch_rank(self) -> float:
        """C / B: rank of the batch's hardest negative, at least 1."""
        return max(1.0, self.candidates / self.batch)

    @property
    def easier(self) -> float:
        """Fraction of the drawn ranks that are easier than the batch's hardest.

        >>> DrawnRanks("t2i", 0, 2, candidates=3, batch=64).easier  # the hardest one, and the next
        0.5
        """
        return max(0.0, self.stop - max(self.start, self.batch_rank)) / max(1, self.stop - self.start)

    def __str__(self) -> str:
        drawn = f"the first {self.stop}" if self.start == 0 else f"ranks {self.start + 1} to {self.stop}"
        harder = self.batch_rank / self.stop  # of the last rank drawn
        times = f"about {harder:.2g} times harder" if harder >= 1.5 else "no harder"
        if self.easier >= 0.005:
            times = f"about {self.easier:.0%} of them are easier"
        rank = f"rank {round(self.batch_rank):,} of {self.candidates:,} {WHAT[self.direction]}"
        return f"the hardest in a batch of {self.batch} has {rank}; draws from {drawn}: {times}"


def drawn_ranks(
    sampling: Sampling,
    direction: Direction,
    *,
    depth: int,
    candidates: int,
    batch: int,
    drawable: Bool[np.ndarray, "anchors depth"] | None = None,
) -> DrawnRanks:
    """Return the ranks that [sampling] draws from lists of `depth`.

    `hardness = "auto"` takes the first C / (10 B), at least 4; where a screen leaves only some negatives `drawable`, as
    many of those, on average over the lists.
    """
    start, stop = 0, (sampling.h_captions if direction == "i2t" else sampling.h_images) or depth
    if sampling.hardness == "auto":
        stop = max(FEWEST, expected_rank(candidates, batch, HARDER))
        if drawable is not None:
            stop = 1 + int(np.searchsorted(drawable.mean(axis=0).cumsum(), stop - 0.5))
        stop = min(depth, stop)
    elif sampling.hardness is not None:
        stop = max(1, min(depth, expected_rank(candidates, batch, sampling.hardness)))
        start = 0 if sampling.hardest is None else expected_rank(candidates, batch, sampling.hardest)
    return DrawnRanks(direction, start, stop, candidates, batch)
