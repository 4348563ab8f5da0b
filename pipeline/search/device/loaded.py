"""A search problem on a device: its vectors, the error of its products, and tiles that the memory has room for."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import torch

from aoq.pipeline.search.device.arithmetic import Precision, error_bound, products_of
from aoq.pipeline.search.device.room import Room, Tile, free_bytes, plan_room
from aoq.pipeline.search.device.vectors import Vectors
from aoq.pipeline.search.problem import Direction, Problem
from aoq.pipeline.search.store import Store

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

RESCORED_SHARE = 0.25
"""Fraction of the free bytes that exact rescoring takes at a time."""
LOST = ("cuda", "cublas", "hip error")
"""Words in the errors of a device that failed."""


class Where(NamedTuple):
    """The device that searches, and its arithmetic; a unit travels with both."""

    device: str
    precision: Precision


@dataclass(frozen=True)
class Loaded:
    """Vectors on a device, for the units of one search."""

    images: Vectors
    captions: Vectors
    error: float
    tile: Tile
    free: int
    """Bytes that were free before anything was loaded."""

    @classmethod
    def of(cls, problem: Problem, where: Where, free: int) -> Loaded:
        """Move the vectors, or what fits of them.

        Raises:
            OSError: if the memory is too small for any tile.
        """
        device, precision = torch.device(where.device), where.precision
        room = plan_room(problem, precision, free)
        if room is None:
            raise OSError(
                f"{device} has {free / 1e6:,.0f} MB free, which is too little for any tile of this search; free some "
                "of its memory, or search with [engine] device = cpu."
            )
        _say(problem, device, room, free)
        images = Vectors.load(problem.images, precision, device, resident=room.images)
        captions = images
        if not problem.one_set:
            captions = Vectors.load(problem.captions, precision, device, resident=room.captions)
        error = error_bound(images.largest, captions.largest, problem.images.shape[1], precision)
        return cls(images, captions, error, room.tile, free)

    def is_of(self, problem: Problem) -> bool:
        return self.images.given is problem.images and self.captions.given is problem.captions

    def __getitem__(self, direction: Direction) -> tuple[Vectors, Vectors]:
        """Anchors and candidates of a direction."""
        return (self.images, self.captions) if direction == "i2t" else (self.captions, self.images)

    @property
    def rescoring(self) -> int:
        """Bytes to rescore pairs in."""
        return int(RESCORED_SHARE * self.free)


def _say(problem: Problem, device: torch.device, room: Room, free: int) -> None:
    stay = [side for side, stays in (("images", room.images), ("captions", room.captions)) if stays]
    if room.tile != room.largest or len(stay) < 2:
        logger.info(
            "%s has %.1f GB free: tiles of %d x %d instead of %d x %d, and %s stay on it; more memory is faster",
            *(device, free / 1e9, *room.tile, *room.largest, " and ".join(stay) or "no vectors"),
        )


_LOADED: WeakKeyDictionary[Store, dict[Where, Loaded]] = WeakKeyDictionary()


def on_device(work: Callable[[Loaded], Result], where: Where, problem: Problem, store: Store) -> Result:
    """Work with the loaded problem; where the memory does not suffice, again with half of it.

    Raises:
        OSError: if the device fails, or has too little memory.
    """
    device, loaded = torch.device(where.device), _LOADED.setdefault(store, {})
    if where in loaded and not loaded[where].is_of(problem):
        del loaded[where]
    free = loaded[where].free if where in loaded else free_bytes(device, problem)
    while True:
        try:
            with products_of(where.precision), torch.inference_mode():
                if where not in loaded:
                    loaded[where] = Loaded.of(problem, where, free)
                return work(loaded[where])
        except torch.OutOfMemoryError:
            loaded.pop(where, None)
        except RuntimeError as error:
            loaded.pop(where, None)
            if not any(word in str(error).lower() for word in LOST):
                raise
            raise OSError(
                f"{device} failed during the search ({str(error).splitlines()[0]}); finished units are kept: run "
                "again, or with [engine] device = cpu."
            ) from error
        free //= 2  # what was allocated is given back once the error is handled
        logger.warning("%s ran out of memory; going on with half of it, %.1f GB", device, free / 1e9)
        if device.type == "cuda":
            torch.cuda.empty_cache()
