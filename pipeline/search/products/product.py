"""Products of blocks: near scores, and floors that every pair that counts reaches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float32

LAST_BIT = 2.0**-24
"""Fraction of two norms' product: the most that rounding a score to float32 can add."""

Scan = tuple[Callable[..., None], tuple[Any, ...]]
"""A kernel and its first arguments.

kernel(start, stop, *arguments, found, ends) looks through the rows from start to stop of a tile. It writes the pairs
that may reach a limit of either side into found (images, captions; numbers within the tile), from place start * columns
on, strip by strip, and their end into `ends[start]`.
"""

Limits = tuple[np.ndarray, np.ndarray]
"""Limits of a tile's images, and of its captions."""


@runtime_checkable
class Product(Protocol):
    """All dot products of one block of vectors with another."""

    precision: str

    def prepare(self, vectors: Float32[np.ndarray, "items D"]) -> Any:
        """Prepare a block for the methods below."""

    def __call__(self, one: Any, other: Any) -> Float32[np.ndarray, "items others"]:
        """Compute the near products. The next call may overwrite them: fresh memory would cost a tenth more."""

    def scan(self, images: Any, captions: Any, limits: Limits) -> Scan:
        """Find at least the pairs whose exact score, rounded to float32, reaches a limit."""


def lowered(
    limits: Float32[np.ndarray, " anchors"], least: Callable[[np.ndarray], np.ndarray]
) -> Float32[np.ndarray, " anchors"]:
    """Lower limits to floors, by `least` in float64, and round down; an infinite limit stays, as nothing reaches it.

    The near score of every pair reaches the floor of a limit that its exact score reaches.

    >>> lowered(np.float32([1, np.inf]), lambda limit: limit - 2**-30).tolist()
    [0.9999999403953552, inf]
    """
    floors = limits.copy()
    finite = np.isfinite(limits)
    floors[finite] = np.nextafter(least(limits[finite].astype(np.float64)).astype(np.float32), np.float32(-np.inf))
    return floors
