"""The optimiser of a schedule: rates by step, groups of parameters, frozen and adapted towers, averaged weights."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn, optim
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from aoq.models.base import MatchingModel
from aoq.models.towers.tower import Tower
from aoq.pipeline.config.training import LoRA, Schedule, Training
from aoq.pipeline.extras import import_extra

TOWER_RATE = 0.1
"""Default fraction of the learning rate for pretrained parameters (VSE∞)."""
LORA = "lora"
"""Name of the adapters, which peft requires."""


def learning_rate(schedule: Schedule, epoch: int, step: int = 0, steps: int = 1) -> float:
    """Return the rate of a step of an epoch of `steps`, both counted from 0."""
    taken, warm = epoch * steps + step, schedule.warmup_steps or 0
    rise = min(1.0, (taken + 1) / warm) if warm else 1.0
    if schedule.schedule == "cosine":
        progress = max(0, taken - warm) / max(1, schedule.epochs * steps - warm)
        return schedule.learning_rate * rise * (1 + math.cos(math.pi * min(1.0, progress))) / 2
    decays = sum(epoch >= after for after in schedule.decay_epochs)
    return schedule.learning_rate * schedule.decay**decays * rise


def make_optimizer(model: MatchingModel, schedule: Training, learnt: Iterable[nn.Parameter] = ()) -> optim.Optimizer:
    """Make Adam, or AdamW if weights decay; the numbers that a loss has `learnt`, such as a temperature, do not."""
    groups = _parameter_groups(model, schedule)
    if numbers := [*learnt]:
        groups.append({"params": numbers, "weight_decay": 0.0})
    if not groups:
        raise ValueError("nothing is trained: towers are frozen, and nothing else has weights; leave out `freeze`.")
    if schedule.weight_decay is None:
        return optim.Adam(groups, lr=schedule.learning_rate, fused=True)
    return optim.AdamW(groups, lr=schedule.learning_rate, weight_decay=schedule.weight_decay, fused=True)


def _parameter_groups(model: MatchingModel, schedule: Schedule) -> list[dict[str, Any]]:
    """Make a group per `share` of the rate, one more if biases and norms do not decay; fresh weights have no share."""
    pretrained = model.pretrained_parameters()
    rate = schedule.tower_rate or (TOWER_RATE if schedule.lora is None else 1.0)  # adapters start from zero
    shares = {id(one): rate for one in pretrained}
    if schedule.layer_decay is not None:
        for tower in model.towers.values():
            for height, layer in enumerate(reversed(tower.layers())):
                shares |= {id(one): rate * schedule.layer_decay**height for one in layer}
    fresh = [one for one in model.parameters() if id(one) not in shares]
    groups: dict[tuple[float | None, bool], dict[str, Any]] = {}
    for parameter in (one for one in (*fresh, *pretrained) if one.requires_grad):
        share, decays = shares.get(id(parameter)), schedule.decay_biases is not False or parameter.ndim > 1
        options = {} if share is None else {"share": share}
        if not decays:
            options["weight_decay"] = 0.0
        groups.setdefault((share, decays), {"params": [], **options})["params"].append(parameter)
    return [*groups.values()]


def set_up_towers(model: MatchingModel, schedule: Schedule) -> None:
    """Freeze the towers that the schedule names; checkpoint the others' activations and adapt them as it says."""
    for side, tower in model.towers.items():
        if side in (schedule.freeze or ()):
            tower.freeze()
            continue
        if schedule.train_layers is not None:
            tower.freeze_below(schedule.train_layers)
        if schedule.gradient_checkpointing:
            tower.checkpoint_gradients()
        if schedule.lora is not None:
            adapt(tower, schedule.lora)


def adapt(tower: Tower, section: LoRA) -> None:
    """Give every linear layer of the network a low-rank adapter, and train these alone (Hu et al., ICLR 2022).

    W x + (alpha / rank) B A x        A (rank, in) is random, B (out, rank) starts at 0
    """
    peft = import_extra("peft", "lora", "lora in a training")
    # No subclasses: torch's own attention reads the weights of its output layer directly.
    layers = [name for name, layer in tower.network.named_modules() if type(layer) is nn.Linear]
    if not layers:
        raise ValueError(f"lora adapts linear layers, but the {type(tower).__name__} has none; leave it out.")
    config = peft.LoraConfig(r=section.rank, lora_alpha=section.alpha or section.rank, target_modules=layers)
    peft.inject_adapter_in_model(config, tower.network, LORA)


def merged_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return weights with their adapters added, W + (alpha / rank) B A, under the names of a model without adapters."""
    weights = dict(model.state_dict())
    for name, layer in model.named_modules():
        if hasattr(layer, "get_delta_weight"):
            own = {key: weights.pop(key) for key in [*weights] if key.startswith(f"{name}.")}
            plain = {key.removeprefix(f"{name}.base_layer."): value for key, value in own.items()}
            adapted: Any = layer
            plain["weight"] = plain["weight"] + adapted.get_delta_weight(LORA).detach()
            weights |= {f"{name}.{key}": value for key, value in plain.items() if not key.startswith(f"{name}.")}
    return weights


def make_average(model: nn.Module, decay: float) -> AveragedModel:
    """Start an average of weights and buffers, updated each step: average ← decay · average + (1 − decay) · weights."""
    average_floats = get_ema_multi_avg_fn(decay)

    def update(averages: Any, values: Any, count: Any) -> None:
        """Average tensors of one dtype; whole numbers, such as the places of a text's ids, are copied."""
        if averages[0].is_floating_point():
            average_floats(averages, values, count)
        else:
            torch._foreach_copy_(averages, values)

    average = AveragedModel(model, multi_avg_fn=update, use_buffers=True)
    average.update_parameters(model)  # the first update copies
    return average
