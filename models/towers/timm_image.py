"""A pretrained image encoder of timm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jaxtyping import Float
from torch import Tensor

from aoq.models.towers.described import seen_by_timm
from aoq.models.towers.image_tower import ImageTower
from aoq.models.towers.tower import offered
from aoq.pipeline.extras import import_extra
from aoq.pipeline.loading import loading


class TimmImage(ImageTower):
    """`timm:NAME`, or `timm:PATH` of a folder with its `config.json`; its own vector is its head's input."""

    network: Any

    def __init__(self, name: str, *, native: bool = False) -> None:
        super().__init__()
        self.name, self.path = name, name.partition(":")[2]
        self.network = self._made(pretrained=False)
        library = import_extra("timm", "timm", name)
        with loading(name, self.path):
            self.preprocessing = seen_by_timm(name, library.data.resolve_model_data_config(self.network))
        self.size = self.network.num_features
        self.native_size = getattr(self.network, "head_hidden_size", self.size)
        self.has_class = getattr(self.network, "cls_token", None) is not None
        self.poolings = offered(first=self.has_class, native=True)

    def _made(self, *, pretrained: bool) -> Any:
        with loading(self.name, self.path):
            library = import_extra("timm", "timm", self.name)
            local = f"local-dir:{Path(self.path).absolute()}" if Path(self.path).is_dir() else self.path
            return library.create_model(local, pretrained=pretrained, num_classes=0)

    @property
    def prefix(self) -> int:
        return int(getattr(self.network, "num_prefix_tokens", 0))

    def load_pretrained(self) -> None:
        self.network.load_state_dict(self._made(pretrained=True).state_dict())

    def checkpoint_gradients(self) -> None:
        self.network.set_grad_checkpointing(True)

    def tokens(self, pixels: Float[Tensor, "images 3 height width"]) -> Float[Tensor, "images tokens size"]:
        found: Tensor = self.network.forward_features(pixels)
        if found.ndim == 3:
            return found
        is_last = getattr(self.network, "output_fmt", "NCHW") == "NHWC"
        return found.flatten(1, 2) if is_last else found.flatten(2).transpose(1, 2)

    def vectors(self, pixels: Float[Tensor, "images 3 height width"]) -> Float[Tensor, "images native_size"]:
        return self.network(pixels)
