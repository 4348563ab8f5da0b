"""Read images of a listing ahead, in batches as an encoder sees them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from aoq.models.towers.preprocessing import Seen, stacked
from aoq.pipeline.orphans import die_with_parent
from aoq.pipeline.prepare.images import decode, thumbnail
from aoq.pipeline.prepare.sources.listing import Images

THUMBNAIL = 200


@dataclass(frozen=True)
class Loading:
    """Settings of reading ahead; none of them changes a result."""

    workers: int
    batch: int
    device: torch.device


class Read(NamedTuple):
    """An image as the encoder sees it, or the reason why it cannot be read."""

    pixels: np.ndarray | None
    sha256: bytes = b""
    width: int = 0
    height: int = 0
    changes: tuple[str, ...] = ()
    problem: str = ""
    thumbnail: bytes = b""


@dataclass(frozen=True)
class Reader(Dataset[Read]):
    """Decoded images of a listing, with thumbnails on request."""

    images: Images
    rows: np.ndarray
    preprocessing: Seen
    has_thumbnails: bool

    def __len__(self) -> int:
        return len(self.rows)

    def part(self, start: int, stop: int) -> Reader:
        """Select some of them, to be sent elsewhere."""
        return replace(self, images=self.images.part(self.rows[start:stop]), rows=np.arange(stop - start))

    def __getitem__(self, place: int) -> Read:
        try:
            encoded = self.images.read(int(self.rows[place]))
            image, width, height, changes = decode(encoded, max(self.preprocessing.least, 2 * THUMBNAIL))
        except FileNotFoundError:
            return Read(None, problem="does not exist")
        except OSError as error:
            return Read(None, problem=f"cannot be read ({error.strerror or error})")
        except ValueError as error:
            return Read(None, problem=str(error))
        small = thumbnail(image, THUMBNAIL) if self.has_thumbnails else b""
        pixels = self.preprocessing.pixels(image)
        return Read(pixels, sha256(encoded).digest(), width, height, changes, thumbnail=small)


Batch = tuple[list[Tensor], list[Read]]
"""Stacked pixels of the readable images, and the records of all."""


def batches(reader: Reader, start: int, loading: Loading) -> Iterator[Batch]:
    """Iterate over all images from the place `start` on, in order."""
    if start == len(reader):
        return iter(())
    return iter(
        DataLoader(
            reader,
            batch_size=loading.batch,
            sampler=range(start, len(reader)),
            num_workers=loading.workers,
            collate_fn=_collate,
            pin_memory=loading.device.type == "cuda",
            prefetch_factor=4 if loading.workers else None,
            # A worker that outlived a killed run would read on for nobody.
            worker_init_fn=_begin_worker,
        )
    )


def _collate(batch: list[Read]) -> Batch:
    """Collate in the worker: tensors travel through shared memory."""
    pixels = stacked(read.pixels for read in batch if read.pixels is not None)
    return pixels, [read._replace(pixels=None) for read in batch]


def _begin_worker(_: int) -> None:
    die_with_parent()
