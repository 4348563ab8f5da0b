"""The optimiser of a schedule: which parameters are trained and decay, and at what rate each group is trained."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

from aoq.models.base import MatchingModel
from aoq.pipeline.config.training import Schedule, Training

TOWER_RATE = 0.1
"""Of the learning rate, the share of what is pretrained, where a schedule names none (VSE∞)."""


def learning_rate(schedule: Schedule, epoch: int, step: int = 0, steps: int = 1) -> float:
    """The rate of a step of an epoch of `steps`, both counted from 0.

    It is multiplied by `decay` after each of `decay_epochs`, or falls to 0 along half a cosine over all steps; over the
    first `warmup_steps` it rises linearly.
    """
    taken, warm = epoch * steps + step, schedule.warmup_steps or 0
    rise = min(1.0, (taken + 1) / warm) if warm else 1.0
    if schedule.schedule == "cosine":
        progress = max(0, taken - warm) / max(1, schedule.epochs * steps - warm)
        return schedule.learning_rate * rise * (1 + math.cos(math.pi * min(1.0, progress))) / 2
    decays = sum(epoch >= after for after in schedule.decay_epochs)
    return schedule.learning_rate * schedule.decay**decays * rise


def make_optimizer(
    model: MatchingModel, schedule: Training, besides: Iterable[nn.Parameter] = ()
) -> torch.optim.Optimizer:
    """Adam, or AdamW where weights decay; what is pretrained has groups of its own, with a `share` of the rate.

    What is learnt `besides`, as a temperature, does not decay.
    """
    groups = _grouped(_parameters(model, schedule), schedule)
    if others := [*besides]:
        groups.append({"params": others, "weight_decay": 0.0})
    if schedule.weight_decay is None:
        return torch.optim.Adam(groups, lr=schedule.learning_rate, fused=True)
    return torch.optim.AdamW(groups, lr=schedule.learning_rate, weight_decay=schedule.weight_decay, fused=True)


def set_up_towers(model: MatchingModel, schedule: Schedule) -> None:
    """Freeze the towers that the schedule names, and let others keep few activations if it says so."""
    frozen = schedule.freeze or ()
    for side, tower in model.towers.items():
        if side in frozen:
            tower.freeze()
        elif schedule.gradient_checkpointing:
            tower.checkpoint_gradients()


class _Trained(NamedTuple):
    parameter: nn.Parameter
    share: float | None
    """Of the rate; None of what starts from random weights."""


def _parameters(model: MatchingModel, schedule: Schedule) -> Iterator[_Trained]:
    """What is not frozen, fresh parameters first."""
    pretrained, rate = model.pretrained_parameters(), schedule.tower_rate or TOWER_RATE
    shares = {id(one): rate for one in pretrained}
    if schedule.layer_decay is not None:
        for tower in model.towers.values():
            for height, layer in enumerate(reversed(tower.layers())):
                shares |= {id(one): rate * schedule.layer_decay**height for one in layer}
    fresh = [one for one in model.parameters() if id(one) not in shares]
    for one in (*fresh, *pretrained):
        if one.requires_grad:
            yield _Trained(one, shares.get(id(one)))


def _grouped(parameters: Iterable[_Trained], schedule: Schedule) -> list[dict[str, Any]]:
    """A group for each share, and one more for its biases and norms where these do not decay."""
    groups: dict[tuple[float | None, bool], dict[str, Any]] = {}
    for parameter, share in parameters:
        decays = schedule.decay_biases is not False or parameter.ndim > 1
        about = {} if share is None else {"share": share}
        if not decays:
            about["weight_decay"] = 0.0
        groups.setdefault((share, decays), {"params": [], **about})["params"].append(parameter)
    return [*groups.values()]
