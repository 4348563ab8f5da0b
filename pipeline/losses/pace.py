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
from jaxtyping import Float64, Int
from torch import Tensor

from aoq.pipeline.losses import collapsed_cost
from aoq.pipeline.losses.similarities import LossValue, Similarities
from aoq.pipeline.losses.triplet import online_triplet

BEARABLE = 0.9
"""The cost of a batch, in that of a collapsed model."""
KEPT = 0.95
"""The share of the level that a step leaves."""
LEVELS = (0.0, *(2.0**exponent for exponent in range(-1, 8)), math.inf)
"""Hardness times the margin at whole levels, from the mean of all negatives to the hardest one."""
TOP = len(LEVELS) - 1
AT_ONCE = ("cpu",)
"""Where a number is there as soon as it is asked for."""
_FINITE = torch.tensor(LEVELS[:-1], dtype=torch.float64)
Loss = Callable[[Similarities], LossValue]


@dataclass
class Pace:
    """How hard online negatives are; the level goes on from step to step, on the device, and nothing waits for it.

    >>> pace, alike = Pace(margin=0.2), Similarities(torch.zeros(4, 4), torch.eye(4).bool())
    >>> pace.follow(alike).hardness
    tensor(0., dtype=torch.float64)
    """

    margin: float
    """That of the online negatives."""
    level: float | Float64[Tensor, ""] = 0.0
    """From 0 to TOP."""

    @property
    def share(self) -> float:
        """From 0, the mean of all negatives, to 1, the hardest."""
        return float(self.figure)

    @property
    def figure(self) -> Float64[Tensor, ""]:
        """`share`, on its device."""
        return (torch.as_tensor(self.level, dtype=torch.float64) / (TOP - 0.5)).clamp(max=1.0)

    def kept(self) -> dict[str, float]:
        """What it goes on from, as numbers."""
        return {"margin": self.margin, "level": float(self.level)}

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


def hardness_at(level: float | Float64[Tensor, ""], *, margin: float) -> Float64[Tensor, ""]:
    """Between two levels, what lies between them; within half of the last level, the hardest negative.

    >>> [hardness_at(level, margin=0.5).item() for level in (0.5, 2.5, 9.6)]
    [0.5, 3.0, inf]
    """
    level = torch.as_tensor(level, dtype=torch.float64)
    whole = level.long().clamp(max=TOP - 2)
    low, high = at(_FINITE, torch.stack([whole, whole + 1])).unbind()
    between = (low + (level - whole) * (high - low)) / margin
    return between.masked_fill(level >= TOP - 0.5, math.inf)


@torch.no_grad()
def bearable_level(loss: Loss, pairs: Similarities, *, margin: float) -> Float64[Tensor, ""]:
    """The highest level at which the batch costs at most BEARABLE of what a collapsed model would; 0 if none is.

    On a device all levels are tried: to stop at the first that costs more would be to wait for each.
    """
    most = BEARABLE * collapsed_cost(loss, len(pairs.matrix), device=pairs.matrix.device).double()
    found: list[Tensor] = []
    for hardness in LEVELS:
        found.append(loss(replace(pairs, hardness=hardness / margin)).total.double())
        if most.device.type in AT_ONCE and not found[-1] <= most:
            break
    costs = torch.stack(found)
    is_dear = ~(costs <= most)
    first = is_dear.int().argmax()
    before, cost = at(costs, torch.stack([(first - 1).clamp(min=0), first])).unbind()
    between = first - 1 + (most - before) / (cost - before)
    level = between.where(between > 0, 0.0)  # 0 too where a cost is not a number, or the first level costs too much
    return level.where(is_dear.any(), TOP)


def at(values: Float64[Tensor, " values"], places: Int[Tensor, " places"]) -> Float64[Tensor, " places"]:
    """The values at these places: `values[places]`, without waiting for the places."""
    return values.to(places.device, non_blocking=True).index_select(0, places)
