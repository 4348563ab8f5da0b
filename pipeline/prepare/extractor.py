"""Extractors: a frozen encoder, its view of images, and the arrays that it makes of them."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Float16, Float32, UInt8
from torch import Tensor, nn

from aoq.models.towers.preprocessing import Seen, Sides

Tokens = Literal["patches", "pooled"]
PixelBatch = UInt8[Tensor, "batch height width 3"]
Arrays = Mapping[str, np.ndarray]
"""The arrays of an extractor, by name; they have rows for readable images only."""
CACHED = 4
"""Images encoded at a time on a CPU: their activations stay in its caches, which takes half the time of 32."""


@dataclass(frozen=True)
class Extractor(ABC):
    """A module in evaluation mode, and its properties."""

    name: str
    preprocessing: Seen
    module: nn.Module
    fingerprint: str
    """Hash of all weights, by name."""
    tokens: int
    """Largest number of regions of an image."""
    dims: int
    grid: tuple[int, int] | None
    """Rows and columns of tokens, if all images have the same; (1, 1) for one vector of the whole input."""

    @property
    def columns(self) -> dict[str, np.dtype]:
        """Type and shape per image of a split's arrays, by the part of their file names after `{split}_`."""
        features, boxes = (self.tokens, self.dims), (self.tokens, 4)
        return {"ims": np.dtype((np.float16, features)), "boxes": np.dtype((np.float32, boxes))}

    @abstractmethod
    def extract(self, pixels: PixelBatch, widths: Sides, heights: Sides, device: torch.device) -> Arrays:
        """Make each of the `columns` for a batch of images of these sizes; boxes are x1, y1, x2, y2 as fractions."""

    def to(self, device: torch.device) -> None:
        self.module.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def half(self, features: Float[Tensor, "*shape"]) -> Float16[np.ndarray, "*shape"]:
        """Convert features to float16, in which they are stored."""
        converted: np.ndarray = features.to(torch.float16).cpu().numpy()
        if not np.isfinite(converted).all():
            raise ValueError(f"{self.name} gives numbers that are not finite in float16; choose another extractor.")
        return converted


@dataclass(frozen=True)
class GridExtractor(Extractor):
    """An encoder whose tokens lie on a grid over its input; a single vector is a grid of one. See `build`."""

    encode: Callable[[Tensor], Float[Tensor, "batch tokens dims"]]
    """Computes tokens from the output of `preprocessing.normalised`."""

    @classmethod
    def build(
        cls,
        name: str,
        preprocessing: Seen,
        module: nn.Module,
        encode: Callable[[Tensor], Tensor],
        *,
        grid: tuple[int, int] | None = None,
        fingerprint: str | None = None,
    ) -> GridExtractor:
        """Build an extractor from a module and the function `encode` that calls it.

        `encode` returns vectors, tokens or maps (batch, dims, rows, cols). Its tokens are those of the `grid`, row by
        row, after any prefix (a class token, registers), which is dropped. Without a grid, they are those of the
        largest square. One blank image shows their shape.
        """
        module.eval().requires_grad_(False)
        with torch.inference_mode():
            blank = encode(preprocessing.normalised(preprocessing.blank()))
        rows, columns = grid or _grid(name, blank, preprocessing)
        dims = blank.shape[1] if blank.ndim in (2, 4) else blank.shape[2]

        def tokens(images: Tensor) -> Tensor:
            states = encode(images)
            if states.ndim == 4:
                states = states.flatten(2).transpose(1, 2)
            states = states[:, None] if states.ndim == 2 else states
            return states[:, states.shape[1] - rows * columns :]

        weights = fingerprint or hash_weights(module)
        return cls(name, preprocessing, module, weights, rows * columns, dims, (rows, columns), tokens)

    def extract(self, pixels: PixelBatch, widths: Sides, heights: Sides, device: torch.device) -> Arrays:
        return {"ims": self.features(pixels, device), "boxes": self.boxes(widths, heights)}

    @torch.inference_mode()
    def features(self, pixels: PixelBatch, device: torch.device) -> Float16[np.ndarray, "batch tokens dims"]:
        """Compute the tokens of a batch, in half precision on a GPU."""
        is_gpu = device.type == "cuda"
        with torch.autocast("cuda", torch.float16) if is_gpu else nullcontext():
            parts = [self.encoded(part, device) for part in ([pixels] if is_gpu else pixels.split(CACHED))]
        return self.half(torch.cat(parts))

    def encoded(self, pixels: PixelBatch, device: torch.device) -> Float[Tensor, "batch tokens dims"]:
        """Compute the tokens of a batch in the module's own precision."""
        return self.encode(self.preprocessing.normalised(pixels.to(device, non_blocking=True)))

    def boxes(self, widths: Sides, heights: Sides) -> Float32[np.ndarray, "images tokens 4"]:
        """Return the box of each token: x1, y1, x2, y2 as fractions of the whole image."""
        seen = self.preprocessing.seen(widths, heights)[:, None]
        assert self.grid is not None  # `build` determines it
        rows, columns = self.grid
        y, x = (part.reshape(-1) for part in np.mgrid[:rows, :columns])
        parts = np.stack([x / columns, y / rows, (x + 1) / columns, (y + 1) / rows], axis=1)
        first, size = np.tile(seen[..., :2], 2), np.tile(seen[..., 2:] - seen[..., :2], 2)
        return np.clip(first + parts * size, 0.0, 1.0).astype(np.float32)


def _grid(name: str, blank: Tensor, preprocessing: Seen) -> tuple[int, int]:
    if blank.ndim == 4:
        return blank.shape[2], blank.shape[3]
    if blank.ndim == 2:
        return 1, 1
    side = int(blank.shape[1] ** 0.5)
    height, width = preprocessing.blank().shape[1:3]
    if blank.ndim != 3 or height != width or blank.shape[1] - side**2 > 16:
        raise ValueError(f"{name} gives {tuple(blank.shape[1:])} numbers per image, not a square grid of tokens.")
    return side, side


@dataclass(frozen=True)
class Detector(Extractor):
    """An R-CNN: up to `tokens` detections per image, best score first, with the features of its box head.

    An image without detections has one region, the whole image. Rows beyond an image's regions are zero and masked.
    """

    @property
    def columns(self) -> dict[str, np.dtype]:
        return {**super().columns, "mask": np.dtype((np.bool_, (self.tokens,)))}

    def extract(self, pixels: PixelBatch, widths: Sides, heights: Sides, device: torch.device) -> Arrays:
        arrays = {name: np.zeros(len(pixels), kind) for name, kind in self.columns.items()}
        for row, image in enumerate(pixels):  # one by one, so that features do not depend on the batch
            features, boxes = self._regions(image.to(device))
            count = len(features)
            arrays["ims"][row, :count], arrays["boxes"][row, :count] = self.half(features), boxes.cpu().numpy()
            arrays["mask"][row, :count] = True
        return arrays

    @torch.inference_mode()
    def _regions(
        self, image: UInt8[Tensor, "height width 3"]
    ) -> tuple[Float[Tensor, "regions dims"], Float[Tensor, "regions 4"]]:
        """Return features, and boxes as fractions of the image."""
        model: Any = self.module
        seen, _ = model.transform([image.permute(2, 0, 1).float() / 255])
        maps = model.backbone(seen.tensors)
        proposals, _ = model.rpn(seen, maps)
        (detections,), _ = model.roi_heads(maps, proposals, seen.image_sizes)
        high, wide = seen.image_sizes[0]
        whole = torch.tensor([[0.0, 0.0, wide, high]], device=image.device)
        boxes = detections["boxes"][: self.tokens] if len(detections["boxes"]) else whole
        pooled = model.roi_heads.box_roi_pool(maps, [boxes], seen.image_sizes)
        return model.roi_heads.box_head(pooled), (boxes / whole[0, [2, 3, 2, 3]]).clamp(0, 1)


def hash_weights(module: nn.Module) -> str:
    total = hashlib.sha256()
    for name, weights in sorted(module.state_dict().items()):
        total.update(f"{name}\0{weights.dtype}\0{tuple(weights.shape)}\0".encode())
        total.update(weights.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()
