"""Preprocessing of images: resizing, cutting, and normalising pixels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from jaxtyping import Float, Float64, Int, UInt8
from torch import Tensor
from typing_extensions import override

if TYPE_CHECKING:
    from PIL.Image import Image

Interpolation = Literal["nearest", "bilinear", "bicubic", "lanczos"]


class Seen(ABC):
    """An encoder's view of images, as 8-bit pixels and as normalised numbers."""

    @abstractmethod
    def pixels(self, image: Image) -> UInt8[np.ndarray, "height width 3"]:
        """Return the encoder's view of an RGB image."""

    @abstractmethod
    def normalised(self, pixels: UInt8[Tensor, "batch height width 3"]) -> Tensor:
        """Normalise batches of `pixels` for the encoder, on their device."""

    @abstractmethod
    def seen(
        self, widths: Int[np.ndarray, " images"], heights: Int[np.ndarray, " images"]
    ) -> Float64[np.ndarray, "images 4"]:
        """Visible box of each image: x1, y1, x2, y2 as fractions of its width and height."""

    @abstractmethod
    def blank(self) -> UInt8[Tensor, "1 height width 3"]:
        """Return a black image."""

    @property
    @abstractmethod
    def least(self) -> int:
        """Shorter side down to which JPEGs may be decoded at a fraction of their size without a visible effect."""

    @property
    def most_at_once(self) -> int:
        """Largest number of images in a batch that is read ahead."""
        return 1024


@dataclass(frozen=True)
class Preprocessing(Seen):
    """An image is resized and its centre cut out; pixels from 0 to 1 become (x - mean) / std."""

    height: int
    width: int
    """Height and width of the encoder's input."""
    resize: int | tuple[int, int]
    """The shorter side, or height and width regardless of the image's shape."""
    mean: tuple[float, ...]
    std: tuple[float, ...]
    interpolation: Interpolation = "bicubic"

    def __post_init__(self) -> None:
        high, wide = (self.resize,) * 2 if isinstance(self.resize, int) else self.resize
        if high < self.height or wide < self.width:
            raise ValueError(
                f"images are resized to {self.resize} and then cut to {self.height} × {self.width}, which is more; "
                "padding is not supported: choose another encoder."
            )

    def resized(self, width: int, height: int) -> tuple[int, int]:
        """Return width and height after resizing, before the cut."""
        if not isinstance(self.resize, int):
            return self.resize[1], self.resize[0]
        shorter = min(width, height)
        # Both sides as in torchvision: the longer one is rounded down.
        return max(1, self.resize * width // shorter), max(1, self.resize * height // shorter)

    @override
    def pixels(self, image: Image) -> UInt8[np.ndarray, "height width 3"]:
        from PIL.Image import Resampling

        wide, high = self.resized(*image.size)
        left, top = round((wide - self.width) / 2), round((high - self.height) / 2)
        resized = image.resize((wide, high), Resampling[self.interpolation.upper()])
        if (wide, high) != (self.width, self.height):
            resized = resized.crop((left, top, left + self.width, top + self.height))
        return np.asarray(resized)

    @override
    def normalised(self, pixels: UInt8[Tensor, "batch height width 3"]) -> Float[Tensor, "batch 3 height width"]:
        scale, shift = (
            torch.tensor(values, dtype=torch.float32, device=pixels.device)
            for values in (
                [1 / (255 * std) for std in self.std],
                [-mean / std for mean, std in zip(self.mean, self.std, strict=True)],
            )
        )
        # Of permuted pixels, the memory stays as it was: channels last, as convolutions like it best.
        return (pixels.float() * scale + shift).permute(0, 3, 1, 2)

    @override
    def seen(
        self, widths: Int[np.ndarray, " images"], heights: Int[np.ndarray, " images"]
    ) -> Float64[np.ndarray, "images 4"]:
        if isinstance(self.resize, int):
            shorter = np.minimum(widths, heights)
            wide, high = self.resize * widths // shorter, self.resize * heights // shorter
        else:
            high, wide = (np.full(len(widths), side) for side in self.resize)
        x, y = self.width / wide, self.height / high
        return np.stack([0.5 - x / 2, 0.5 - y / 2, 0.5 + x / 2, 0.5 + y / 2], axis=1)

    @override
    def blank(self) -> UInt8[Tensor, "1 height width 3"]:
        return torch.zeros(1, self.height, self.width, 3, dtype=torch.uint8)

    @property
    @override
    def least(self) -> int:
        return 2 * (self.resize if isinstance(self.resize, int) else max(self.resize))


@dataclass(frozen=True)
class Whole(Seen):
    """The whole image, for a module that resizes and normalises it; larger ones are shrunk to these sides."""

    shorter: int
    longer: int
    interpolation: Interpolation = "bicubic"

    @override
    def pixels(self, image: Image) -> UInt8[np.ndarray, "height width 3"]:
        from PIL.Image import Resampling

        shrink = min(self.shorter / min(image.size), self.longer / max(image.size))
        if shrink < 1:
            wide, high = (max(1, round(side * shrink)) for side in image.size)
            image = image.resize((wide, high), Resampling[self.interpolation.upper()])
        return np.asarray(image)

    @override
    def normalised(self, pixels: UInt8[Tensor, "batch height width 3"]) -> UInt8[Tensor, "batch height width 3"]:
        return pixels

    @override
    def seen(
        self, widths: Int[np.ndarray, " images"], heights: Int[np.ndarray, " images"]
    ) -> Float64[np.ndarray, "images 4"]:
        return np.tile([0.0, 0.0, 1.0, 1.0], (len(widths), 1))

    @override
    def blank(self) -> UInt8[Tensor, "1 height width 3"]:
        return torch.zeros(1, 64, 64, 3, dtype=torch.uint8)

    @property
    @override
    def least(self) -> int:
        return 2 * self.shorter

    @property
    @override
    def most_at_once(self) -> int:
        return 4


def stacked(pixels: Iterable[UInt8[np.ndarray, "_ _ 3"]]) -> list[UInt8[Tensor, "some _ _ 3"]]:
    """Stack consecutive images of one size into one tensor, in order."""
    return [torch.from_numpy(np.stack(list(run))) for _, run in groupby(pixels, np.shape)]
