"""The optimiser of a schedule: its trained parameters, their weight decay, and the rate of each group."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

from aoq.models.base import MatchingModel
from aoq.pipeline.config.training import Schedule, Training
from aoq.pipeline.training.adapters import adapt

TOWER_RATE = 0.1
"""Default fraction of the learning rate for pretrained parameters (VSE∞)."""


def learning_rate(schedule: Schedule, epoch: int, step: int = 0, steps: int = 1) -> float:
    """Return the rate of a step of an epoch of `steps`, both counted from 0.

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
    """Make Adam, or AdamW if weights decay; pretrained parameters have their own groups with a `share` of the rate.

    Parameters learnt `besides`, such as a temperature, do not decay.
    """
    groups = _grouped(_parameters(model, schedule), schedule)
    if others := [*besides]:
        groups.append({"params": others, "weight_decay": 0.0})
    if schedule.weight_decay is None:
        return torch.optim.Adam(groups, lr=schedule.learning_rate, fused=True)
    return torch.optim.AdamW(groups, lr=schedule.learning_rate, weight_decay=schedule.weight_decay, fused=True)


def set_up_towers(model: MatchingModel, schedule: Schedule) -> None:
    """Freeze the towers that the schedule names; checkpoint the activations of others and adapt them if it says so."""
    frozen = schedule.freeze or ()
    for side, tower in model.towers.items():
        if side in frozen:
            tower.freeze()
            continue
        if schedule.gradient_checkpointing:
            tower.checkpoint_gradients()
        if schedule.lora is not None:
            adapt(tower, schedule.lora)


class _Trained(NamedTuple):
    parameter: nn.Parameter
    share: float | None
    """Fraction of the rate; None for parameters that start from random weights."""


def _parameters(model: MatchingModel, schedule: Schedule) -> Iterator[_Trained]:
    """Collect parameters that are not frozen, fresh ones first."""
    pretrained = model.pretrained_parameters()
    rate = schedule.tower_rate or (TOWER_RATE if schedule.lora is None else 1.0)  # adapters start from nothing
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
    """Make a group for each share, and another for its biases and norms if these do not decay."""
    groups: dict[tuple[float | None, bool], dict[str, Any]] = {}
    for parameter, share in parameters:
        decays = schedule.decay_biases is not False or parameter.ndim > 1
        about = {} if share is None else {"share": share}
        if not decays:
            about["weight_decay"] = 0.0
        groups.setdefault((share, decays), {"params": [], **about})["params"].append(parameter)
    return [*groups.values()]
