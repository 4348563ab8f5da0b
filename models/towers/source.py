"""Sources of towers from transformers: an encoder, or half of a pretrained pair such as a CLIP."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import torch
from torch import nn

from aoq.models.towers.tower import numbers_of
from aoq.pipeline.extras import import_extra
from aoq.pipeline.loading import loading

Kind = Literal["text", "vision"]


class Half(NamedTuple):
    """Names in transformers of half of a pair: with the layers that make its vector, and without."""

    native: str
    bare: str


PAIRS: dict[str, dict[Kind, Half]] = {
    "clip": {
        "text": Half("CLIPTextModelWithProjection", "CLIPTextModel"),
        "vision": Half("CLIPVisionModelWithProjection", "CLIPVisionModel"),
    },
    "siglip": {
        "text": Half("SiglipTextModel", "SiglipTextModel"),
        "vision": Half("SiglipVisionModel", "SiglipVisionModel"),
    },
}
"""Halves by the `model_type` of the pair."""


class Source(NamedTuple):
    """An encoder on the hub or in a folder: its configuration, and the class that loads it."""

    name: str
    path: str
    config: Any
    architecture: Any
    is_half: bool

    @classmethod
    def open(cls, name: str, kind: Kind, *, native: bool) -> Source:
        """Open `transformers:NAME_OR_PATH` without reading its weights.

        Raises:
            ValueError: for an encoder that cannot be loaded, and for pairs of another kind.
        """
        library, path = import_extra("transformers", "transformers", name), name.partition(":")[2]
        with loading(name, path):
            config = library.AutoConfig.from_pretrained(path)
        if not hasattr(config, "vision_config"):
            return cls(name, path, config, library.AutoModel, False)
        if config.model_type not in PAIRS:
            known = ", ".join(sorted(PAIRS))
            raise ValueError(f"{name} is a {config.model_type}; of models of images and texts known are {known}.")
        part, half = getattr(config, f"{kind}_config"), PAIRS[config.model_type][kind]
        if config.model_type == "clip":  # where the part itself may say another size
            part.projection_dim = config.projection_dim
        return cls(name, path, part, getattr(library, half.native if native else half.bare), True)

    def build(self) -> nn.Module:
        """Build the network with random weights."""
        with loading(self.name, self.path):
            made = self.architecture._from_config if self.is_half else self.architecture.from_config
            return without_pooler(made(self.config, dtype=torch.float32), keep=self.is_half)

    def load_into(self, network: nn.Module) -> None:
        """Copy the published weights into a network of `build`."""
        with loading(self.name, self.path):
            with _quiet():
                found, about = self.architecture.from_pretrained(
                    self.path, config=self.config, dtype=torch.float32, output_loading_info=True
                )
            missing = sorted(set(about["missing_keys"]) & network.state_dict().keys())
            if missing:
                raise ValueError(f"its weights lack {missing[0]} and {len(missing) - 1} more: another model's")
            network.load_state_dict(without_pooler(found, keep=self.is_half).state_dict())

    def numbers(self) -> dict[str, float]:
        """The temperature of the pair of which it is half, and SigLIP's bias."""
        library = import_extra("transformers", "transformers", self.name)
        with loading(self.name, self.path), _quiet():
            return numbers_of(library.AutoModel.from_pretrained(self.path, dtype=torch.float32))


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the library's report of missing weights, such as poolers: they are checked here."""
    logs = import_extra("transformers.utils.logging", "transformers", "a tower")
    level = logs.get_verbosity()
    logs.set_verbosity_error()
    try:
        yield
    finally:
        logs.set_verbosity(level)


def without_pooler(network: Any, *, keep: bool = False) -> Any:
    """Remove BERT's further layer on the first state, which does not affect the states."""
    if not keep and getattr(network, "pooler", None) is not None:
        network.pooler = None
    return network


def checkpoint_gradients(network: Any) -> None:
    """Compute activations again in the backward pass; raise a ValueError if the network cannot."""
    # Transformers 5.23 renamed it.
    enable = getattr(network, "activation_checkpointing_enable", None) or network.gradient_checkpointing_enable
    enable({"use_reentrant": False})
