"""Read images of a source ahead, in batches as an encoder sees them, and extract their arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from aoq.models.towers.preprocessing import Seen, stacked
from aoq.pipeline.orphans import die_with_parent
from aoq.pipeline.prepare.extractor import Extractor
from aoq.pipeline.prepare.images import decode, thumbnail
from aoq.pipeline.prepare.sources.images import EncodedImages

THUMBNAIL = 200
Arrays = Mapping[str, np.ndarray]
"""The arrays of an extractor, by name; they have rows for readable images only."""


class ReadImage(NamedTuple):
    """An image as the encoder sees it, or the reason why it cannot be read."""

    pixels: np.ndarray | None
    sha256: bytes = b""
    width: int = 0
    height: int = 0
    changes: tuple[str, ...] = ()
    problem: str = ""
    thumbnail: bytes = b""


@dataclass(frozen=True)
class ImageReader(Dataset[ReadImage]):
    """Decoded images of a source, with thumbnails on request."""

    images: EncodedImages
    count: int
    preprocessing: Seen
    has_thumbnails: bool

    def __len__(self) -> int:
        return self.count

    def part(self, start: int, stop: int) -> ImageReader:
        """Select some of them, to be sent elsewhere."""
        return replace(self, images=self.images.take(np.arange(start, stop)), count=stop - start)

    def __getitem__(self, place: int) -> ReadImage:
        try:
            encoded = self.images.read(place)
            image, width, height, changes = decode(encoded, max(self.preprocessing.least, 2 * THUMBNAIL))
        except FileNotFoundError:
            return ReadImage(None, problem="does not exist")
        except OSError as error:
            return ReadImage(None, problem=f"cannot be read ({error.strerror or error})")
        except ValueError as error:
            return ReadImage(None, problem=str(error))
        small = thumbnail(image, THUMBNAIL) if self.has_thumbnails else b""
        pixels = self.preprocessing.pixels(image)
        return ReadImage(pixels, sha256(encoded).digest(), width, height, changes, thumbnail=small)


@dataclass(frozen=True)
class Extracting:
    """An extractor on its device, and how it is fed; neither the batch nor the workers change a result."""

    extractor: Extractor
    device: torch.device
    batch: int
    workers: int

    def batches(self, reader: ImageReader, start: int) -> Iterator[tuple[Arrays, list[ReadImage]]]:
        """Extract all images from the place `start` on, in order: the arrays of each batch, and its images."""
        if start == len(reader):
            return
        loader = DataLoader(
            reader,
            batch_size=self.batch,
            sampler=range(start, len(reader)),
            num_workers=self.workers,
            collate_fn=_collate,
            pin_memory=self.device.type == "cuda",
            prefetch_factor=4 if self.workers else None,
            # A worker that outlived a killed run would read on for nobody.
            worker_init_fn=lambda _: die_with_parent(),
        )
        for pixels, batch in loader:
            yield self._extract(pixels, batch), batch

    def _extract(self, pixels: list[Tensor], batch: list[ReadImage]) -> Arrays:
        sizes = np.array([(image.width, image.height) for image in batch if not image.problem], np.int64)
        parts, start = [], 0
        for part in pixels:
            widths, heights = sizes[start : start + len(part)].T
            parts.append(self.extractor.extract(part, widths, heights, self.device))
            start += len(part)
        return concatenate_arrays(parts)


def concatenate_arrays(parts: list[Arrays]) -> Arrays:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]} if parts else {}


def _collate(batch: list[ReadImage]) -> tuple[list[Tensor], list[ReadImage]]:
    """Stack the pixels of readable images in the worker: tensors travel through shared memory."""
    pixels = stacked(image.pixels for image in batch if image.pixels is not None)
    return pixels, [image._replace(pixels=None) for image in batch]
