"""What is to be mined: two sets of vectors, who belongs to whom, and how many negatives each keeps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from jaxtyping import Float32, Int32, Int64

Direction = Literal["i2t", "t2i"]
DIRECTIONS: tuple[Direction, ...] = ("i2t", "t2i")
OTHER: Mapping[Direction, Direction] = {"i2t": "t2i", "t2i": "i2t"}
BLOCK = 4096
DEFAULT_MEMORY = 1_500_000_000


@dataclass(frozen=True)
class Positives:
    """The candidates that are no negatives: those of anchor n are `ids[offsets[n]:offsets[n + 1]]`."""

    ids: Int32[np.ndarray, " pairs"]
    offsets: Int64[np.ndarray, " anchors_and_one"]

    def rows(self, rows: Int64[np.ndarray, " some"]) -> Positives:
        """Those of some anchors."""
        counts = np.diff(self.offsets)[rows]
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        places = np.arange(offsets[-1]) + np.repeat(self.offsets[rows] - offsets[:-1], counts)
        return Positives(self.ids[places], offsets)

    @property
    def most(self) -> int:
        return int(np.diff(self.offsets).max(initial=0))


@dataclass(frozen=True)
class Side:
    """One direction of a problem."""

    anchors: Float32[np.ndarray, "anchors D"]
    candidates: Float32[np.ndarray, "candidates D"]
    positives: Positives
    h: int
    longest: float
    """No anchor's norm times a candidate's is more."""
    memory: int = DEFAULT_MEMORY

    def rows(self, rows: Int64[np.ndarray, " some"]) -> Side:
        """Some of the anchors."""
        anchors = np.ascontiguousarray(self.anchors[rows])
        return Side(anchors, self.candidates, self.positives.rows(rows), self.h, self.longest, self.memory)

    @property
    def wanted(self) -> int:
        """So many of the best candidates are sure to hold h negatives."""
        return self.h + self.positives.most

    @property
    def rounding_error(self) -> float:
        """How far a float32 dot product, added up in any order, can be from the exact one: (D + 1) 2^-24 |a| |c|."""
        return 1.01 * (self.anchors.shape[1] + 1) * 2.0**-24 * self.longest


@dataclass(frozen=True)
class Problem:
    """Vectors of images and captions, memory-mapped, and the image of each caption (-1: of none)."""

    images: Float32[np.ndarray, "images D"]
    captions: Float32[np.ndarray, "captions E"]
    image_of: Int32[np.ndarray, " rows"]
    h_captions: int
    h_images: int
    memory: int = DEFAULT_MEMORY
    """About so many bytes may be used beyond the vectors, which the system keeps in memory as it sees fit."""

    def __post_init__(self) -> None:
        for name, vectors in (("images", self.images), ("captions", self.captions)):
            if not len(vectors):
                raise ValueError(f"there are no {name} to mine; give at least one vector.")
        if self.images.shape[1] != self.captions.shape[1]:
            raise ValueError(
                f"images have {self.images.shape[1]} dimensions and captions {self.captions.shape[1]}; "
                "both must come from one model."
            )
        if len(self.image_of) != len(self.captions):
            raise ValueError(
                f"{len(self.image_of)} captions are paired with images, and {len(self.captions)} are there."
            )
        if len(outside := np.flatnonzero((self.image_of < -1) | (self.image_of >= len(self.images)))):
            raise ValueError(
                f"caption {outside[0]} is paired with image {self.image_of[outside[0]]}, and there are images 0 to "
                f"{len(self.images) - 1} (-1: of none)."
            )
        for option in ("h_captions", "h_images"):
            side = self["i2t" if option == "h_captions" else "t2i"]
            if side.wanted > len(side.candidates):
                most, count = side.positives.most, len(side.candidates)
                raise ValueError(
                    f"h={side.h} needs at least {side.wanted} candidates (each anchor has up to {most} positives), "
                    f"got {count}; lower `mining.{option}` to at most {count - most}."
                )

    def __getitem__(self, direction: Direction) -> Side:
        if direction == "t2i":
            return Side(self.captions, self.images, self._images_of, self.h_images, self.longest, self.memory)
        return Side(self.images, self.captions, self._captions_of, self.h_captions, self.longest, self.memory)

    @cached_property
    def norms(self) -> tuple[float, float]:
        """The largest norm of an image, and of a caption."""
        return _longest(self.images, "images"), _longest(self.captions, "captions")

    @property
    def longest(self) -> float:
        return math.prod(self.norms)

    @cached_property
    def _images_of(self) -> Positives:
        has = self.image_of >= 0
        return Positives(self.image_of[has], np.concatenate([[0], np.cumsum(has)]).astype(np.int64))

    @cached_property
    def _captions_of(self) -> Positives:
        return own_captions(self.image_of, len(self.images))


def own_captions(image_of: Int32[np.ndarray, " captions"], images: int) -> Positives:
    """The captions of every image, rising; those of no image (-1) are left out."""
    order = np.argsort(image_of, kind="stable").astype(np.int32)
    order = order[np.count_nonzero(image_of < 0) :]
    counts = np.bincount(image_of[order], minlength=images)
    return Positives(order, np.concatenate([[0], np.cumsum(counts)]).astype(np.int64))


def blocks(count: int, size: int) -> list[tuple[int, int]]:
    """Where each block starts and stops.

    >>> blocks(5, 2)
    [(0, 2), (2, 4), (4, 5)]
    """
    return [(start, min(start + size, count)) for start in range(0, count, size)]


def _longest(vectors: Float32[np.ndarray, "items D"], name: str) -> float:
    most = 0.0
    for start, stop in blocks(len(vectors), BLOCK):
        part = vectors[start:stop]
        squares = np.einsum("nd,nd->n", part, part, dtype=np.float64)
        if not np.isfinite(squares).all():
            row = start + int(np.flatnonzero(~np.isfinite(squares))[0])
            raise ValueError(f"the vector in row {row} of the {name} is not finite; mend or remove it.")
        most = max(most, float(squares.max()))
    return math.sqrt(most)
