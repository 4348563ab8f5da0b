"""The optimiser of a schedule: which parameters decay, and at what rate each group is trained."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from aoq.models.base import MatchingModel
from aoq.pipeline.config.training import Training

TOWER_RATE = 0.1
"""Of the learning rate, the share of what is pretrained, where a schedule names none (VSE∞)."""


def learning_rate(schedule: Training, epoch: int) -> float:
    """The rate of an epoch, counted from 0: multiplied by `decay` after each of `decay_epochs`."""
    return schedule.learning_rate * schedule.decay ** sum(epoch >= after for after in schedule.decay_epochs)


def make_optimizer(
    model: MatchingModel, schedule: Training, besides: Iterable[nn.Parameter] = ()
) -> torch.optim.Optimizer:
    """Adam, or AdamW where weights decay; what is pretrained is a group by itself, with a `share` of the rate.

    What is learnt `besides`, as a temperature, does not decay.
    """
    pretrained = model.pretrained_parameters()
    apart = {id(parameter) for parameter in pretrained}
    groups: list[dict[str, Any]] = [{"params": [one for one in model.parameters() if id(one) not in apart]}]
    if pretrained:
        groups.append({"params": pretrained, "share": schedule.tower_rate or TOWER_RATE})
    if others := [*besides]:
        groups.append({"params": others, "weight_decay": 0.0})
    if schedule.weight_decay is None:
        return torch.optim.Adam(groups, lr=schedule.learning_rate)
    return torch.optim.AdamW(groups, lr=schedule.learning_rate, weight_decay=schedule.weight_decay)
