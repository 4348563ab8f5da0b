"""What all extractors are: a frozen encoder, what it wants to see, and what it gives for an image."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Float16, Float32, Int, UInt8
from torch import Tensor, nn

from aoq.pipeline.prepare.extractors.preprocessing import Preprocessing

CACHED = 4
"""Images at a time on a CPU: what a layer makes of so few stays in its caches, which takes half the time of 32."""
Tokens = Literal["patches", "pooled"]
Encode = Callable[[Float[Tensor, "batch 3 height width"]], Float[Tensor, "batch tokens dims"]]


@dataclass(frozen=True)
class Extractor:
    """An encoder of images in evaluation mode; see `build`."""

    name: str
    preprocessing: Preprocessing
    module: nn.Module
    encode: Encode
    grid: tuple[int, int]
    """Rows and columns of tokens; (1, 1) for one vector of all that is seen."""
    dims: int
    fingerprint: str
    """The hash of all weights, by name."""

    @classmethod
    def build(
        cls,
        name: str,
        preprocessing: Preprocessing,
        module: nn.Module,
        encode: Encode,
        *,
        grid: tuple[int, int] | None = None,
        fingerprint: str | None = None,
    ) -> Extractor:
        """An extractor of a module that `encode` calls, for vectors, tokens, or maps (batch, dims, rows, columns).

        Tokens are the `grid`'s, row by row, after any prefix (a class token, registers), which is dropped; without a
        grid as many as the largest square has.

        Raises:
            ValueError: for a module whose tokens are no grid.
        """
        module.eval().requires_grad_(False)
        blank = torch.zeros(1, 3, preprocessing.height, preprocessing.width)
        with torch.inference_mode():
            found = encode(blank)
        rows, columns = grid or _grid(name, found, preprocessing)
        dims = found.shape[1] if found.ndim in (2, 4) else found.shape[2]

        def tokens(images: Tensor) -> Tensor:
            made = encode(images)
            if made.ndim == 4:
                made = made.flatten(2).transpose(1, 2)
            made = made[:, None] if made.ndim == 2 else made
            return made[:, made.shape[1] - rows * columns :]

        return cls(name, preprocessing, module, tokens, (rows, columns), dims, fingerprint or fingerprint_of(module))

    @property
    def tokens(self) -> int:
        return self.grid[0] * self.grid[1]

    def to(self, device: torch.device) -> None:
        self.module.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    @torch.inference_mode()
    def features(
        self, pixels: UInt8[Tensor, "batch height width 3"], device: torch.device
    ) -> Float16[np.ndarray, "batch tokens dims"]:
        """The tokens of a batch; in half precision on a GPU.

        Raises:
            ValueError: for numbers that float16 does not hold.
        """
        is_gpu = device.type == "cuda"
        parts = []
        with torch.autocast("cuda", torch.float16) if is_gpu else nullcontext():
            for part in [pixels] if is_gpu else pixels.split(CACHED):
                seen = self.preprocessing.normalised(part.to(device, non_blocking=True))
                parts.append(self.encode(seen).to(torch.float16).cpu())
        made = torch.cat(parts).numpy()
        if not np.isfinite(made).all():
            raise ValueError(f"{self.name} gives numbers that are not finite in float16; choose another extractor.")
        return made

    def boxes(
        self, widths: Int[np.ndarray, " images"], heights: Int[np.ndarray, " images"]
    ) -> Float32[np.ndarray, "images tokens 4"]:
        """Where the tokens of images lie: x1, y1, x2, y2 as shares of the whole image."""
        seen = self.preprocessing.seen(widths, heights)[:, None]
        rows, columns = self.grid
        y, x = (part.reshape(-1) for part in np.mgrid[:rows, :columns])
        parts = np.stack([x / columns, y / rows, (x + 1) / columns, (y + 1) / rows], axis=1)
        first, size = np.tile(seen[..., :2], 2), np.tile(seen[..., 2:] - seen[..., :2], 2)
        return np.clip(first + parts * size, 0.0, 1.0).astype(np.float32)


def _grid(name: str, found: Tensor, preprocessing: Preprocessing) -> tuple[int, int]:
    if found.ndim == 4:
        return found.shape[2], found.shape[3]
    if found.ndim == 2:
        return 1, 1
    side = int(found.shape[1] ** 0.5)
    if found.ndim != 3 or preprocessing.height != preprocessing.width or found.shape[1] - side**2 > 16:
        raise ValueError(f"{name} gives {tuple(found.shape[1:])} numbers an image, which is no square grid of tokens.")
    return side, side


def fingerprint_of(module: nn.Module) -> str:
    """The sha256 of a module's weights and buffers, by name."""
    found = hashlib.sha256()
    for name, weights in sorted(module.state_dict().items()):
        found.update(f"{name}\0{weights.dtype}\0{tuple(weights.shape)}\0".encode())
        found.update(weights.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()
