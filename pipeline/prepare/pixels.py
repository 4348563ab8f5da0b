"""Photographs of a dataset folder as input of an image tower, decoded when a batch requests them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Int, UInt8
from torch import Tensor
from typing_extensions import override

from aoq.models.towers.preprocessing import Preprocessing
from aoq.pipeline.data.batches import Pixels
from aoq.pipeline.data.folder import Split
from aoq.pipeline.extras import import_extra
from aoq.pipeline.prepare.augmentation import Augmenter, may_be_flipped
from aoq.pipeline.prepare.images import decode
from aoq.pipeline.prepare.photographs import Photographs, open_photographs


@dataclass(frozen=True)
class PhotographPixels(Pixels):
    """Photographs of a split; without an augmenter, as the tower sees them in evaluation."""

    photographs: Photographs
    preprocessing: Preprocessing
    may_flip: Bool[np.ndarray, " images"]
    augmenter: Augmenter | None = None

    @override
    def read(self, rows: Int[np.ndarray, " batch"]) -> UInt8[Tensor, "batch height width 3"]:
        """Read each photograph once, however often it is in the batch; threads decode, and end with the call."""
        distinct, places = np.unique(rows, return_inverse=True)
        with ThreadPoolExecutor() as pool:
            pixels = np.stack([*pool.map(self._pixels, distinct.tolist())])
        return torch.from_numpy(pixels[places])

    @override
    def augmented(self, ways: tuple[str, ...], seed: int, epoch: int) -> PhotographPixels:
        return replace(self, augmenter=Augmenter(ways, seed, epoch))

    def decoded(self, rows: Int[np.ndarray, " some"]) -> UInt8[np.ndarray, "some height width 3"]:
        """Decode these photographs in this thread."""
        return np.stack([self._pixels(row) for row in rows.tolist()])

    def _pixels(self, row: int) -> UInt8[np.ndarray, "height width 3"]:
        content = self.photographs.read(row)
        try:
            image = decode(content, self.preprocessing.least).image
        except ValueError as error:
            where = self.photographs.images.describe(row)
            raise ValueError(f"{where}: {error}; prepare the folder again.") from None
        if self.augmenter is None:
            return self.preprocessing.pixels(image)
        return self.augmenter.pixels(image, row, self.preprocessing, may_flip=bool(self.may_flip[row]))


def open_pixels(folder: Path, split: Split, preprocessing: Preprocessing, images: int | None = None) -> Pixels:
    """Open the photographs of a split, or the first ones of the `images` that its folder lists.

    Raises:
        ValueError: if the folder does not name its photographs.
    """
    import_extra("PIL.Image", "prepare", "an image tower")
    photographs = open_photographs(folder, split.name, images or split.image_count)
    may_flip = may_be_flipped(split.captions, split.image_of, split.image_count)
    return PhotographPixels(photographs, preprocessing, may_flip)
