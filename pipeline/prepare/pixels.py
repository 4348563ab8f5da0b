"""Photographs of a dataset folder as input of an image tower, decoded for each batch, by threads or processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Thread

import numpy as np
import torch
from jaxtyping import Bool, Int, UInt8
from torch import Tensor
from typing_extensions import override

from aoq.models.towers.preprocessing import RGB, Preprocessing
from aoq.pipeline.data.batches import Pixels
from aoq.pipeline.data.folder import Split
from aoq.pipeline.extras import import_extra
from aoq.pipeline.prepare.augmentation import Augmenter, may_be_flipped
from aoq.pipeline.prepare.images import decode
from aoq.pipeline.prepare.photographs import Photographs, open_photographs

Rows = Int[np.ndarray, " rows"]


@dataclass(frozen=True)
class PhotographPixels(Pixels):
    """Photographs of a split; without an augmenter, as the tower sees them in evaluation."""

    photographs: Photographs
    preprocessing: Preprocessing
    may_flip: Bool[np.ndarray, " images"]
    augmenter: Augmenter | None = None

    @override
    def read(self, rows: Rows) -> UInt8[Tensor, "rows height width 3"]:
        """Read each photograph once, however often it is in the batch; threads decode, and end with the call."""
        distinct, places = np.unique(rows, return_inverse=True)
        with ThreadPoolExecutor() as pool:
            pixels = np.stack([*pool.map(self.decoded, distinct.tolist())])
        return torch.from_numpy(pixels[places])

    @override
    def augmented(self, ways: tuple[str, ...], seed: int, epoch: int) -> PhotographPixels:
        return replace(self, augmenter=Augmenter(ways, seed, epoch))

    def decoded(self, row: int) -> RGB:
        """Decode a photograph in this thread."""
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


@dataclass(frozen=True)
class DecodedElsewhere(Pixels):
    """The same photographs as `pixels`, decoded by `count` processes of the pool."""

    pixels: PhotographPixels
    pool: ProcessPoolExecutor
    count: int

    @override
    def read(self, rows: Rows) -> UInt8[Tensor, "rows height width 3"]:
        """Read each photograph once, however often it is in the batch.

        Raises:
            ChildProcessError: if one of the processes was killed.
        """
        distinct, places = np.unique(rows, return_inverse=True)
        parts = np.array_split(distinct, min(self.count, len(distinct)))
        try:
            results = [self.pool.submit(_decode, self.pixels.augmenter, part) for part in parts]
            return torch.from_numpy(np.concatenate([one.result() for one in results])[places])
        except BrokenProcessPool as error:
            raise ChildProcessError(
                "a process that decodes photographs was killed, as happens when memory runs out. Run again: the "
                "training continues from its last checkpoint; fewer [engine] workers take less memory."
            ) from error

    @override
    def augmented(self, ways: tuple[str, ...], seed: int, epoch: int) -> DecodedElsewhere:
        return replace(self, pixels=self.pixels.augmented(ways, seed, epoch))


@contextmanager
def decoded_elsewhere(pixels: Pixels, count: int) -> Iterator[Pixels]:
    """Yield the photographs, decoded by `count` processes beside a training whose threads share Python's lock."""
    assert isinstance(pixels, PhotographPixels)  # the only kind that is decoded
    # Spawned: forking a process with threads may hang.
    spawning = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(count, spawning, initializer=_begin, initargs=(pixels,))
    try:
        yield DecodedElsewhere(pixels, pool, count)
    finally:
        pool.shutdown(cancel_futures=True)


_HELD: list[PhotographPixels] = []
"""In a process of the pool, the photographs it decodes: their lists are long, and are sent once."""


def _begin(pixels: PhotographPixels) -> None:
    """End with the parent, and leave Ctrl-C to it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _HELD[:] = [pixels]
    # `die_with_parent` would end this process with the thread that started it, and an epoch's threads end early.
    Thread(target=_end_after_parent, daemon=True).start()


def _end_after_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _decode(augmenter: Augmenter | None, rows: Rows) -> UInt8[np.ndarray, "rows height width 3"]:
    pixels = replace(_HELD[0], augmenter=augmenter)
    return np.stack([pixels.decoded(row) for row in rows.tolist()])
