"""Base of all extractors: a frozen encoder, its input, and the arrays that it makes of images."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float16, Int, UInt8
from torch import Tensor, nn

from aoq.models.towers.preprocessing import Seen

Tokens = Literal["patches", "pooled"]


class Column(NamedTuple):
    """Shape and type of an array's entry for one image."""

    dtype: np.dtype
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Bytes per image."""
        return self.dtype.itemsize * int(np.prod(self.shape))


@dataclass(frozen=True)
class Extractor(ABC):
    """A module in evaluation mode, and its properties."""

    name: str
    preprocessing: Seen
    module: nn.Module
    fingerprint: str
    """Hash of all weights, by name."""
    tokens: int
    """Regions of an image, at most."""
    dims: int

    @property
    def columns(self) -> dict[str, Column]:
        """Arrays of a split that it makes of images, by the part after `{split}_`."""
        return {
            "ims": Column(np.dtype(np.float16), (self.tokens, self.dims)),
            "boxes": Column(np.dtype(np.float32), (self.tokens, 4)),
        }

    @property
    def grid(self) -> tuple[int, int] | None:
        """Rows and columns of tokens, if all images have the same; (1, 1) for one vector of the whole input."""
        return None

    @abstractmethod
    def extract(
        self,
        pixels: UInt8[Tensor, "batch height width 3"],
        widths: Int[np.ndarray, " batch"],
        heights: Int[np.ndarray, " batch"],
        device: torch.device,
    ) -> Mapping[str, np.ndarray]:
        """Each of the `columns` for a batch of images of these sizes; boxes are x1, y1, x2, y2 as shares of the whole.

        Raises:
            ValueError: for numbers that float16 does not hold.
        """

    def to(self, device: torch.device) -> None:
        self.module.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def half(self, features: Float[Tensor, "*shape"]) -> Float16[np.ndarray, "*shape"]:
        """Convert features to float16, in which they are stored."""
        made: np.ndarray = features.to(torch.float16).cpu().numpy()
        if not np.isfinite(made).all():
            raise ValueError(f"{self.name} gives numbers that are not finite in float16; choose another extractor.")
        return made


def fingerprint_of(module: nn.Module) -> str:
    """Hash a module's weights and buffers, by name, with sha256."""
    found = hashlib.sha256()
    for name, weights in sorted(module.state_dict().items()):
        found.update(f"{name}\0{weights.dtype}\0{tuple(weights.shape)}\0".encode())
        found.update(weights.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()
