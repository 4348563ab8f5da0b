"""Self-paced hardness: a batch's online negatives are as hard as the model can bear, so that no training collapses.

A collapsed model, to which all pairs are equally similar, costs one margin per pair and direction. Where hardest
negatives cost more than that, descent leads to the collapse. So online negatives are means of the batch's negatives
(`aoq.pipeline.losses.hinge.online_negative`), of the highest hardness at which the batch costs less:

    t(batch) = the largest t with  mean over (i, t) of [m - S(i,t) + s_on(t)]_+  <=  0.9 m
    level    = 0.95 level + 0.05 level(t(batch))

The collapse is uphill at every step, and nothing is scheduled: hardness rises as the model learns, up to the hardest
negative of VSE++, and falls again where it must.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch

from aoq.pipeline.losses import plateau
from aoq.pipeline.losses.similarities import LossValue, Similarities
from aoq.pipeline.losses.triplet import online_triplet

BEARABLE = 0.9
"""The cost of a batch, in that of a collapsed model."""
KEPT = 0.95
"""The share of the level that a step leaves."""
LEVELS = (0.0, *(2.0**exponent for exponent in range(-1, 8)), math.inf)
"""Hardness times the margin at whole levels, from the mean of all negatives to the hardest one."""
TOP = len(LEVELS) - 1
Loss = Callable[[Similarities], LossValue]


@dataclass
class Pace:
    """How hard online negatives are; the level goes on from step to step.

    >>> pace, alike = Pace(margin=0.2), Similarities(torch.zeros(4, 4), torch.eye(4).bool())
    >>> pace.follow(alike).hardness
    0.0
    """

    margin: float
    """That of the online negatives."""
    level: float = 0.0
    """From 0 to TOP."""

    @property
    def share(self) -> float:
        """From 0, the mean of all negatives, to 1, the hardest."""
        return min(1.0, self.level / (TOP - 0.5))

    def follow(self, pairs: Similarities, loss: Loss | None = None) -> Similarities:
        """The pairs at the hardness of this step.

        `loss` is what the batch's online negatives cost, by default the online triplet loss.
        """
        loss = loss or partial(online_triplet, margin=self.margin)
        self.level = KEPT * self.level + (1 - KEPT) * bearable_level(loss, pairs, margin=self.margin)
        return self.at_level(pairs)

    def at_level(self, pairs: Similarities) -> Similarities:
        """The pairs at the hardness of the last step."""
        return replace(pairs, hardness=hardness_at(self.level, margin=self.margin))


def hardness_at(level: float, *, margin: float) -> float:
    """Between two levels, what lies between them; within half of the last level, the hardest negative.

    >>> hardness_at(0.5, margin=0.5), hardness_at(2.5, margin=0.5), hardness_at(9.6, margin=0.5)
    (0.5, 3.0, inf)
    """
    if level >= TOP - 0.5:
        return math.inf
    whole = min(int(level), TOP - 2)
    low, high = LEVELS[whole], LEVELS[whole + 1]
    return (low + (level - whole) * (high - low)) / margin


@torch.no_grad()
def bearable_level(loss: Loss, pairs: Similarities, *, margin: float) -> float:
    """The highest level at which the batch costs at most BEARABLE of what a collapsed model would; 0 if none is."""
    most = BEARABLE * plateau(loss, len(pairs.matrix))
    before = math.nan
    for level, hardness in enumerate(LEVELS):
        cost = float(loss(replace(pairs, hardness=hardness / margin)).total)
        if not cost <= most:
            return max(0.0, level - 1 + (most - before) / (cost - before)) if level else 0.0
        before = cost
    return float(TOP)
