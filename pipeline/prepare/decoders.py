"""Processes that decode and augment photographs, beside a training whose threads share one lock of Python's."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import Thread

import numpy as np
import torch
from jaxtyping import Int, UInt8
from torch import Tensor
from typing_extensions import override

from aoq.pipeline.data.batches import Pixels
from aoq.pipeline.prepare.augmentation import Augmenter
from aoq.pipeline.prepare.pixels import PhotographPixels


@dataclass(frozen=True)
class DecodedElsewhere(Pixels):
    """The same photographs, of the same rows, as `pixels` reads; `count` processes of the pool decode them."""

    pixels: PhotographPixels
    pool: ProcessPoolExecutor
    count: int

    @override
    def read(self, rows: Int[np.ndarray, " batch"]) -> UInt8[Tensor, "batch height width 3"]:
        """Read each photograph once, however often it is in the batch.

        Raises:
            ChildProcessError: if one of the processes was killed.
        """
        distinct, places = np.unique(rows, return_inverse=True)
        parts = np.array_split(distinct, min(self.count, len(distinct)))
        try:
            found = [self.pool.submit(_decoded, self.pixels.augmenter, part) for part in parts]
            return torch.from_numpy(np.concatenate([one.result() for one in found])[places])
        except BrokenProcessPool as error:
            raise ChildProcessError(
                "a process that decodes photographs was killed, as happens where memory runs out. Run again: the "
                "training goes on from its last checkpoint; fewer [engine] workers take less memory."
            ) from error

    @override
    def augmented(self, ways: tuple[str, ...], seed: int, epoch: int) -> DecodedElsewhere:
        return replace(self, pixels=self.pixels.augmented(ways, seed, epoch))


@contextmanager
def decoded_elsewhere(pixels: Pixels, count: int) -> Iterator[Pixels]:
    """Yield the photographs, decoded by `count` processes, which end with the block."""
    assert isinstance(pixels, PhotographPixels)  # the only kind there is to decode
    # Spawned: a fork beside threads may hang.
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
    # The signal of `die_with_parent` comes when the thread ends that started this process, as those of an epoch do.
    Thread(target=_end_after_parent, daemon=True).start()


def _end_after_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _decoded(augmenter: Augmenter | None, rows: Int[np.ndarray, " some"]) -> UInt8[np.ndarray, "some height width 3"]:
    (pixels,) = _HELD
    return replace(pixels, augmenter=augmenter).decoded(rows)
