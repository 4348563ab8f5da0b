"""LoRA: low-rank adapters in place of a tower's own weights in training (Hu et al., ICLR 2022)."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from aoq.models.towers.tower import Tower
from aoq.pipeline.config.training import LoRA
from aoq.pipeline.extras import import_extra

NAME = "lora"
"""Name of the adapters, which peft wants."""


def adapt(tower: Tower, section: LoRA) -> None:
    """Give every linear layer of the network an adapter, and train these alone.

        W x + (alpha / rank) B A x        A (rank, in) is random, B (out, rank) starts at 0

    Raises:
        ValueError: if the network has no linear layer.
    """
    peft = import_extra("peft", "lora", "lora in a training")
    # Exactly these: attention of torch's own reads the weights of its output layer past the layer.
    layers = [name for name, layer in tower.network.named_modules() if type(layer) is nn.Linear]
    if not layers:
        raise ValueError(f"lora adapts linear layers, and the {type(tower).__name__} has none; leave it out.")
    config = peft.LoraConfig(r=section.rank, lora_alpha=section.alpha or section.rank, target_modules=layers)
    peft.inject_adapter_in_model(config, tower.network, NAME)


def merged_weights(model: nn.Module) -> dict[str, Tensor]:
    """Weights under the names that the model has without adapters: W + (alpha / rank) B A in place of both."""
    weights = dict(model.state_dict())
    for name, layer in model.named_modules():
        if hasattr(layer, "get_delta_weight"):
            own = {key: weights.pop(key) for key in [*weights] if key.startswith(f"{name}.")}
            plain = {key.removeprefix(f"{name}.base_layer."): value for key, value in own.items()}
            adapted: Any = layer
            plain["weight"] = plain["weight"] + adapted.get_delta_weight(NAME).detach()
            weights |= {f"{name}.{key}": value for key, value in plain.items() if not key.startswith(f"{name}.")}
    return weights
