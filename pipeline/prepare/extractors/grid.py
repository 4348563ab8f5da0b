"""Extractors whose tokens lie on a grid over the input; a single vector is a grid of one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Float16, Float32, Int, UInt8
from torch import Tensor, nn
from typing_extensions import override

from aoq.models.towers.preprocessing import Seen
from aoq.pipeline.prepare.extractors.extractor import Extractor, fingerprint_of

CACHED = 4
"""Images encoded at a time on a CPU: activations of so few stay in its caches, which takes half the time of 32."""
Encode = Callable[[Tensor], Float[Tensor, "batch tokens dims"]]


@dataclass(frozen=True)
class GridExtractor(Extractor):
    """An encoder of images; see `build`."""

    encode: Encode
    """Computes tokens from the output of `preprocessing.normalised`."""
    shape: tuple[int, int]

    @classmethod
    def build(
        cls,
        name: str,
        preprocessing: Seen,
        module: nn.Module,
        encode: Encode,
        *,
        grid: tuple[int, int] | None = None,
        fingerprint: str | None = None,
    ) -> GridExtractor:
        """Build an extractor from a module that `encode` calls, for vectors, tokens or maps (batch, dims, rows, cols).

        Tokens are the `grid`'s, row by row, after any prefix (a class token, registers), which is dropped; without a
        grid, those of the largest square.

        Raises:
            ValueError: for a module whose tokens are not a grid.
        """
        module.eval().requires_grad_(False)
        with torch.inference_mode():
            found = encode(preprocessing.normalised(preprocessing.blank()))
        rows, columns = grid or _grid(name, found, preprocessing)
        dims = found.shape[1] if found.ndim in (2, 4) else found.shape[2]

        def tokens(images: Tensor) -> Tensor:
            made = encode(images)
            if made.ndim == 4:
                made = made.flatten(2).transpose(1, 2)
            made = made[:, None] if made.ndim == 2 else made
            return made[:, made.shape[1] - rows * columns :]

        weights = fingerprint or fingerprint_of(module)
        return cls(name, preprocessing, module, weights, rows * columns, dims, tokens, (rows, columns))

    @property
    @override
    def grid(self) -> tuple[int, int]:
        return self.shape

    @override
    def extract(
        self,
        pixels: UInt8[Tensor, "batch height width 3"],
        widths: Int[np.ndarray, " batch"],
        heights: Int[np.ndarray, " batch"],
        device: torch.device,
    ) -> dict[str, np.ndarray]:
        return {"ims": self.features(pixels, device), "boxes": self.boxes(widths, heights)}

    @torch.inference_mode()
    def features(
        self, pixels: UInt8[Tensor, "batch height width 3"], device: torch.device
    ) -> Float16[np.ndarray, "batch tokens dims"]:
        """Tokens of a batch; in half precision on a GPU.

        Raises:
            ValueError: for numbers that float16 does not hold.
        """
        is_gpu = device.type == "cuda"
        with torch.autocast("cuda", torch.float16) if is_gpu else nullcontext():
            parts = [self.encoded(part, device) for part in ([pixels] if is_gpu else pixels.split(CACHED))]
        return self.half(torch.cat(parts))

    def encoded(
        self, pixels: UInt8[Tensor, "batch height width 3"], device: torch.device
    ) -> Float[Tensor, "batch tokens dims"]:
        """Tokens of a batch, as the module gives them."""
        return self.encode(self.preprocessing.normalised(pixels.to(device, non_blocking=True)))

    def boxes(
        self, widths: Int[np.ndarray, " images"], heights: Int[np.ndarray, " images"]
    ) -> Float32[np.ndarray, "images tokens 4"]:
        """Boxes of the tokens of images: x1, y1, x2, y2 as fractions of the whole image."""
        seen = self.preprocessing.seen(widths, heights)[:, None]
        rows, columns = self.grid
        y, x = (part.reshape(-1) for part in np.mgrid[:rows, :columns])
        parts = np.stack([x / columns, y / rows, (x + 1) / columns, (y + 1) / rows], axis=1)
        first, size = np.tile(seen[..., :2], 2), np.tile(seen[..., 2:] - seen[..., :2], 2)
        return np.clip(first + parts * size, 0.0, 1.0).astype(np.float32)


def _grid(name: str, found: Tensor, preprocessing: Seen) -> tuple[int, int]:
    if found.ndim == 4:
        return found.shape[2], found.shape[3]
    if found.ndim == 2:
        return 1, 1
    side = int(found.shape[1] ** 0.5)
    height, width = preprocessing.blank().shape[1:3]
    if found.ndim != 3 or height != width or found.shape[1] - side**2 > 16:
        raise ValueError(f"{name} gives {tuple(found.shape[1:])} numbers an image, which is no square grid of tokens.")
    return side, side
