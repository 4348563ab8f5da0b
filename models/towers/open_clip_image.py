"""The image side of a pair of open_clip."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from aoq.models.towers.image_tower import ImageTower
from aoq.models.towers.open_clip_pair import OpenClipPair, above_the_blocks
from aoq.models.towers.tower import offered


class OpenClipImage(ImageTower):
    """`open_clip:NAME/TAG` or `open_clip:PATH`; its own vector is the one that the pair compares."""

    network: Any

    def __init__(self, name: str, *, native: bool = False) -> None:
        super().__init__()
        self.pair = OpenClipPair.open(name)
        self.network = self.pair.build().visual
        self.preprocessing = self.pair.preprocessing(self.network)
        trunk = getattr(self.network, "trunk", self.network)  # timm's inside
        self.has_class = any(hasattr(trunk, token) for token in ("class_embedding", "cls_token"))
        self.prefix_size = int(getattr(trunk, "num_prefix_tokens", self.has_class))
        with torch.no_grad():
            blank = self.preprocessing.normalised(self.preprocessing.blank())
            self.network.eval()
            self.size = self.tokens(blank).shape[2]
            self.native_size = self.network(blank).shape[1]
            self.network.train()
        self.poolings = offered(first=self.has_class, native=True)
        if not native:
            self._drop_projection()

    @property
    def prefix(self) -> int:
        return self.prefix_size

    def load_pretrained(self) -> None:
        self.pair.load_into("visual", self.network)

    def pair_numbers(self) -> dict[str, float]:
        return self.pair.numbers()

    def checkpoint_gradients(self) -> None:
        self.network.set_grad_checkpointing(True)

    def layers(self) -> list[list[nn.Parameter]]:
        return above_the_blocks(super().layers(), getattr(self.network, "proj", None))

    def tokens(self, pixels: Float[Tensor, "images 3 height width"]) -> Float[Tensor, "images tokens size"]:
        made = self.network.forward_intermediates(
            pixels,
            indices=1,
            normalize_intermediates=True,
            intermediates_only=True,
            output_extra_tokens=self.prefix_size > 0,
        )
        (maps,) = made["image_intermediates"]
        prefix = made.get("image_intermediates_prefix", [])
        return torch.cat([*prefix, maps.flatten(2).transpose(1, 2)], dim=1)

    def vectors(self, pixels: Float[Tensor, "images 3 height width"]) -> Float[Tensor, "images native_size"]:
        return self.network(pixels)

    def _drop_projection(self) -> None:
        """Drop the layers that make the pair's own vector alone; they would have no gradient."""
        if hasattr(self.network, "proj"):
            self.network.proj = None
        if hasattr(self.network, "head"):
            self.network.head = nn.Sequential()
