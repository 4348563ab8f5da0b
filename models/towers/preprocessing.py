"""Preprocessing of images: an encoder's view of them as 8-bit pixels, and its libraries' descriptions of that view."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch
from jaxtyping import Float, Float64, Int, UInt8
from torch import Tensor

if TYPE_CHECKING:
    from PIL.Image import Image

Interpolation = Literal["nearest", "bilinear", "bicubic", "lanczos"]
RESAMPLE: dict[int, Interpolation] = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}
"""Interpolations by Pillow's numbers."""
CONVNEXT_SQUASHES = 384
"""Smallest side at which ConvNeXt resizes images without a crop."""
Sides = Int[np.ndarray, " images"]
RGB = UInt8[np.ndarray, "height width 3"]


@dataclass(frozen=True)
class Preprocessing:
    """Resize an image and crop its centre; pixels from 0 to 1 become (x - mean) / std."""

    height: int
    width: int
    """Height and width of the encoder's input."""
    resize: int | tuple[int, int]
    """The shorter side, or height and width regardless of the image's shape."""
    mean: tuple[float, ...]
    std: tuple[float, ...]
    interpolation: Interpolation = "bicubic"
    most_at_once: ClassVar = 1024
    """Largest number of images in a batch that is read ahead."""

    def __post_init__(self) -> None:
        high, wide = (self.resize,) * 2 if isinstance(self.resize, int) else self.resize
        if high < self.height or wide < self.width:
            raise ValueError(
                f"images are resized to {self.resize}, then cropped to {self.height} × {self.width}, which is larger; "
                "padding is not supported: choose another encoder."
            )

    def resized(self, width: Any, height: Any, shorter: Any) -> tuple[Any, Any]:
        """Return width and height after resizing, before the crop."""
        if not isinstance(self.resize, int):
            return self.resize[1], self.resize[0]
        # Both sides as in torchvision: the longer one is rounded down.
        return self.resize * width // shorter, self.resize * height // shorter

    def pixels(self, image: Image) -> RGB:
        from PIL.Image import Resampling

        wide, high = (max(1, side) for side in self.resized(*image.size, min(image.size)))
        left, top = round((wide - self.width) / 2), round((high - self.height) / 2)
        resized = image.resize((wide, high), Resampling[self.interpolation.upper()])
        if (wide, high) != (self.width, self.height):
            resized = resized.crop((left, top, left + self.width, top + self.height))
        return np.asarray(resized)

    def normalised(self, pixels: UInt8[Tensor, "batch height width 3"]) -> Float[Tensor, "batch 3 height width"]:
        """Normalise batches of `pixels` for the encoder, on their device."""
        scale, shift = (
            torch.tensor(values, dtype=torch.float32, device=pixels.device)
            for values in (
                [1 / (255 * std) for std in self.std],
                [-mean / std for mean, std in zip(self.mean, self.std, strict=True)],
            )
        )
        # The permuted pixels keep their memory layout, channels last, which convolutions prefer.
        return (pixels.float() * scale + shift).permute(0, 3, 1, 2)

    def seen(self, widths: Sides, heights: Sides) -> Float64[np.ndarray, "images 4"]:
        """Return the visible box of each image: x1, y1, x2, y2 as fractions of its width and height."""
        wide, high = self.resized(widths, heights, np.minimum(widths, heights))
        x, y = (np.broadcast_to(part, len(widths)) for part in (self.width / wide, self.height / high))
        return np.stack([0.5 - x / 2, 0.5 - y / 2, 0.5 + x / 2, 0.5 + y / 2], axis=1)

    def blank(self) -> UInt8[Tensor, "1 height width 3"]:
        return torch.zeros(1, self.height, self.width, 3, dtype=torch.uint8)

    @property
    def least(self) -> int:
        """Shorter side down to which JPEGs may be decoded at a fraction of their size without a visible effect."""
        return 2 * (self.resize if isinstance(self.resize, int) else max(self.resize))


@dataclass(frozen=True)
class Whole:
    """The whole image, for a module that resizes and normalises it; larger images are shrunk to these sides."""

    shorter: int
    longer: int
    interpolation: Interpolation = "bicubic"
    most_at_once: ClassVar = 4

    def pixels(self, image: Image) -> RGB:
        from PIL.Image import Resampling

        shrink = min(self.shorter / min(image.size), self.longer / max(image.size))
        if shrink < 1:
            wide, high = (max(1, round(side * shrink)) for side in image.size)
            image = image.resize((wide, high), Resampling[self.interpolation.upper()])
        return np.asarray(image)

    def normalised(self, pixels: UInt8[Tensor, "batch height width 3"]) -> UInt8[Tensor, "batch height width 3"]:
        return pixels

    def seen(self, widths: Sides, heights: Sides) -> Float64[np.ndarray, "images 4"]:
        return np.tile([0.0, 0.0, 1.0, 1.0], (len(widths), 1))

    def blank(self) -> UInt8[Tensor, "1 height width 3"]:
        return torch.zeros(1, 64, 64, 3, dtype=torch.uint8)

    @property
    def least(self) -> int:
        return 2 * self.shorter


Seen = Preprocessing | Whole
"""An encoder's view of images, as 8-bit pixels and as normalised numbers."""


def stacked(pixels: Iterable[UInt8[np.ndarray, "_ _ 3"]]) -> list[UInt8[Tensor, "some _ _ 3"]]:
    """Stack consecutive images of one size into one tensor, in order."""
    return [torch.from_numpy(np.stack(list(run))) for _, run in groupby(pixels, np.shape)]


def seen_by_transformers(name: str, config: dict[str, Any]) -> Preprocessing:
    """Read the preprocessing from the content of `preprocessor_config.json`."""
    size = config.get("size") or {}
    size = {"shortest_edge": size} if isinstance(size, int) else dict(size)
    if config.get("do_pad") or not (size.keys() >= {"height", "width"} or "shortest_edge" in size):
        raise ValueError(f"{name} takes images of varying or padded sizes ({size}); choose one of a fixed size.")
    resample = config.get("resample", 3)
    if resample not in RESAMPLE:
        raise ValueError(f"{name} resizes by resample = {resample}; known are Pillow's {sorted(RESAMPLE)}.")
    resize = size.get("shortest_edge") or (size["height"], size["width"])
    crop = config.get("crop_size") if config.get("do_center_crop") else None
    if crop is None and config.get("crop_pct") and isinstance(resize, int):
        if resize < CONVNEXT_SQUASHES:
            crop, resize = resize, int(resize / config["crop_pct"])
        else:
            resize = (resize, resize)
    if isinstance(crop, dict):
        height, width = (crop.get(side) or crop.get("shortest_edge") for side in ("height", "width"))
        if not (height and width):
            raise ValueError(f"{name} crops to {crop}; known are height and width, or shortest_edge.")
    else:
        height, width = _both(crop or resize)
    mean, std = (
        tuple(config[key]) if config.get("do_normalize", True) and config.get(key) else default
        for key, default in (("image_mean", (0.0,) * 3), ("image_std", (1.0,) * 3))
    )
    return Preprocessing(height, width, resize, mean, std, RESAMPLE[resample])


def seen_by_timm(name: str, config: dict[str, Any]) -> Preprocessing:
    _, height, width = config["input_size"]
    mode, scaled = config["crop_mode"], tuple(math.floor(side / config["crop_pct"]) for side in (height, width))
    if mode == "border" or (mode == "center" and height != width):
        raise ValueError(f"{name} pads images ({mode}), which is not supported")
    resize = scaled if mode == "squash" else scaled[0]
    return Preprocessing(height, width, resize, tuple(config["mean"]), tuple(config["std"]), config["interpolation"])


def seen_by_open_clip(name: str, config: dict[str, Any]) -> Preprocessing:
    height, width = _both(config["size"])
    mode = config["resize_mode"]
    if mode == "longest" or (mode == "shortest" and height != width):
        raise ValueError(f"{name} pads images ({mode}), which is not supported")
    resize = height if mode == "shortest" else (height, width)
    return Preprocessing(height, width, resize, tuple(config["mean"]), tuple(config["std"]), config["interpolation"])


def _both(side: Any) -> Any:
    return (side, side) if isinstance(side, int) else side
