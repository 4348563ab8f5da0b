"""Self-paced hardness: online negatives are as hard as the model can bear without collapsing.

A collapsed model costs one margin per pair and direction. If hardest negatives cost more, descent leads to it.
So online negatives are means (`online_negative`), with the highest hardness at which the batch costs less:

    t(batch) = the largest t with  mean over (i, t) of [m - S(i,t) + s_on(t)]_+  <=  0.9 m
    level    = 0.95 level + 0.05 level(t(batch))

So the collapse is uphill at every step. Nothing is scheduled: hardness rises as the model learns, up to the hardest
negative of VSE++, and falls again if the batch costs too much.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial

import torch
from jaxtyping import Float64, Int
from torch import Tensor

from aoq.models.packing import sent
from aoq.pipeline.losses import collapsed_cost
from aoq.pipeline.losses.aoq import online_triplet
from aoq.pipeline.losses.similarities import LossFunction, Similarities

BEARABLE = 0.9
"""Highest cost of a batch, as a fraction of a collapsed model's."""
KEPT = 0.95
"""Fraction of the level that a step keeps."""
LEVELS = (0.0, *(2.0**exponent for exponent in range(-1, 8)), math.inf)
"""Hardness times the margin at whole levels, from the mean of all negatives to the hardest one."""
TOP = len(LEVELS) - 1
SYNCHRONOUS = ("cpu",)
"""Devices on which reading a number does not wait."""
_FINITE = torch.tensor(LEVELS[:-1], dtype=torch.float64)


@dataclass
class Pace:
    """Hardness of online negatives; the level carries over from step to step and stays on the device.

    >>> pace, collapsed = Pace(margin=0.2), Similarities(torch.zeros(4, 4), torch.eye(4).bool())
    >>> pace.follow(collapsed).hardness
    tensor(0., dtype=torch.float64)
    >>> print("online negatives are", pace)
    online negatives are of hardness 0.00
    """

    margin: float
    """Margin of the online negatives."""
    level: float | Float64[Tensor, ""] = 0.0
    """Level from 0 to TOP."""

    @property
    def share(self) -> float:
        """Fraction from 0, the mean of all negatives, to 1, the hardest."""
        return float(self.figure)

    @property
    def figure(self) -> Float64[Tensor, ""]:
        """`share` as a tensor on its device."""
        return (torch.as_tensor(self.level, dtype=torch.float64) / (TOP - 0.5)).clamp(max=1.0)

    def __str__(self) -> str:
        return "the batch's hardest" if self.share == 1 else f"of hardness {self.share:.2f}"

    def kept(self) -> dict[str, float]:
        """Return the state to resume from, as numbers."""
        return {"margin": self.margin, "level": float(self.level)}

    @property
    def is_at_hardest(self) -> bool:
        """Whether the last step's online negatives were the hardest ones; this waits for a GPU."""
        return float(self.level) >= TOP - 0.5

    def follow(self, pairs: Similarities, loss: LossFunction | None = None) -> Similarities:
        """Give the pairs the hardness of this step.

        `loss` is the loss of the batch's online negatives, by default the online triplet loss.
        """
        loss = loss or partial(online_triplet, margin=self.margin)
        self.level = KEPT * self.level + (1 - KEPT) * bearable_level(loss, pairs, margin=self.margin)
        return self.at_level(pairs)

    def at_level(self, pairs: Similarities) -> Similarities:
        """Give the pairs the hardness of the last step."""
        return replace(pairs, hardness=hardness_at(self.level, margin=self.margin))


def hardness_at(level: float | Float64[Tensor, ""], *, margin: float) -> Float64[Tensor, ""]:
    """Interpolate between two levels; within half of the last level, take the hardest negative.

    >>> [hardness_at(level, margin=0.5).item() for level in (0.5, 2.5, 9.6)]
    [0.5, 3.0, inf]
    """
    level = torch.as_tensor(level, dtype=torch.float64)
    whole = level.long().clamp(max=TOP - 2)
    low, high = at(_FINITE, torch.stack([whole, whole + 1])).unbind()
    between = (low + (level - whole) * (high - low)) / margin
    return between.masked_fill(level >= TOP - 0.5, math.inf)


@torch.no_grad()
def bearable_level(loss: LossFunction, pairs: Similarities, *, margin: float) -> Float64[Tensor, ""]:
    """Return the highest level at which the batch costs at most BEARABLE of a collapsed model's cost, or 0."""
    most = BEARABLE * collapsed_cost(loss, len(pairs.matrix), device=pairs.matrix.device).double()
    tried: list[Tensor] = []
    for hardness in LEVELS:
        tried.append(loss(replace(pairs, hardness=hardness / margin)).total.double())
        # A GPU tries all levels: stopping at the first that costs more would wait for each.
        if most.device.type in SYNCHRONOUS and not tried[-1] <= most:
            break
    costs = torch.stack(tried)
    is_above = ~(costs <= most)
    first = is_above.int().argmax()
    before, cost = at(costs, torch.stack([(first - 1).clamp(min=0), first])).unbind()
    between = first - 1 + (most - before) / (cost - before)
    level = between.where(between > 0, 0.0)  # also 0 if a cost is NaN, or if the first level costs too much
    return level.where(is_above.any(), TOP)


def at(values: Float64[Tensor, " values"], places: Int[Tensor, " places"]) -> Float64[Tensor, " places"]:
    """Return `values[places]` without waiting for the places."""
    return sent(values, places.device).index_select(0, places)
