"""Photographs of a dataset folder as input of an image tower, decoded for each batch, by threads or processes."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import Thread
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Bool, Int, Int32, UInt8
from torch import Tensor

from aoq.models.towers.preprocessing import RGB, Preprocessing

if TYPE_CHECKING:
    from PIL.Image import Image

LEFT_RIGHT = re.compile(r"\b(left|right)", re.IGNORECASE)


@dataclass(frozen=True)
class PhotographPixels:
    """Photographs of a split as an image tower sees them, perhaps augmented; with a pool, its processes decode."""

    decode: Callable[[int, int], Image]
    """Reads a row's photograph, down to the given pixels a side."""
    preprocessing: Preprocessing
    may_flip: Bool[np.ndarray, " images"]
    augmentation: tuple[tuple[str, ...], int, int] | None = None
    """Ways, seed and epoch."""
    pool: ProcessPoolExecutor | None = None
    processes: int = 0

    def read(self, rows: Int[np.ndarray, " rows"]) -> UInt8[Tensor, "rows height width 3"]:
        """Read photographs, each once, however often it is in the batch; they depend on the rows alone."""
        distinct, places = np.unique(rows, return_inverse=True)
        if self.pool is None:
            with ThreadPoolExecutor() as threads:
                pixels = np.stack([*threads.map(self.decoded, distinct.tolist())])
            return torch.from_numpy(pixels[places])
        parts = np.array_split(distinct, min(self.processes, len(distinct)))
        try:
            results = [self.pool.submit(_decode, self.augmentation, part) for part in parts]
            return torch.from_numpy(np.concatenate([one.result() for one in results])[places])
        except BrokenProcessPool as error:
            raise ChildProcessError(
                "a process that decodes photographs was killed, as happens when memory runs out. Run again: the "
                "training continues from its last checkpoint; fewer [engine] workers take less memory."
            ) from error

    def augmented(self, ways: tuple[str, ...], seed: int, epoch: int) -> PhotographPixels:
        """Return the same photographs, changed at random as a function of the rows, the seed and the epoch."""
        return replace(self, augmentation=(ways, seed, epoch))

    def decoded(self, row: int) -> RGB:
        image = self.decode(row, self.preprocessing.least)
        if self.augmentation is None:
            return self.preprocessing.pixels(image)
        from aoq.pipeline.data.augmentation import augment  # late: it imports Pillow

        return augment(image, self.preprocessing, *self.augmentation, row, may_flip=bool(self.may_flip[row]))


def may_be_flipped(
    captions: Sequence[str], image_of: Int32[np.ndarray, " captions"], images: int
) -> Bool[np.ndarray, " images"]:
    """Return which images have no caption that names a side.

    >>> may_be_flipped(["a dog left of a cat", "a bright dog"], np.array([0, 1], np.int32), 2).tolist()
    [False, True]
    """
    may = np.ones(images, dtype=np.bool_)
    may[image_of[[LEFT_RIGHT.search(caption) is not None for caption in captions]]] = False
    return may


@contextmanager
def decoded_elsewhere(pixels: PhotographPixels, count: int) -> Iterator[PhotographPixels]:
    """Yield the photographs, decoded by `count` processes beside a training whose threads share Python's lock."""
    # Spawned: forking a process with threads may hang.
    spawning = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(count, spawning, initializer=_begin_decoding, initargs=(pixels,))
    try:
        yield replace(pixels, pool=pool, processes=count)
    finally:
        pool.shutdown(cancel_futures=True)


_HELD: list[PhotographPixels] = []
"""In a process of the pool, the photographs it decodes: their lists are long, and are sent once."""


def _begin_decoding(pixels: PhotographPixels) -> None:
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


def _decode(
    augmentation: tuple[tuple[str, ...], int, int] | None, rows: Int[np.ndarray, " rows"]
) -> UInt8[np.ndarray, "rows height width 3"]:
    pixels = replace(_HELD[0], augmentation=augmentation)
    return np.stack([pixels.decoded(row) for row in rows.tolist()])
