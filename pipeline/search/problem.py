"""Search problem: two sets of vectors, the pairs that match, and the depth of each side's lists."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float32, Int64, Integer

from aoq.pipeline.search.positives import Positives, both_ways, pairs_of, with_itself

Direction = Literal["i2t", "t2i"]
DIRECTIONS: tuple[Direction, ...] = ("i2t", "t2i")
OTHER: Mapping[Direction, Direction] = {"i2t": "t2i", "t2i": "i2t"}
LAST_BITS = 2.0**-21
"""Fraction of the largest product that rounding a score down and a bound up to float32 cannot exceed."""

BLOCK = 4096
DEFAULT_MEMORY = 1_500_000_000
NORMS = 1e-12, 1e12
"""Limits of a side's largest norm. Between them no square or product overflows float32 or underflows to nothing.
A side of zeros is allowed too."""


class Size(NamedTuple):
    """Sizes of one direction of a problem."""

    anchors: int
    candidates: int
    h: int
    wanted: int
    """Number of best candidates that surely hold h negatives."""


@dataclass(frozen=True)
class Side:
    """One direction of a problem."""

    anchors: Float32[np.ndarray, "anchors D"]
    candidates: Float32[np.ndarray, "candidates D"]
    positives: Positives
    h: int
    longest: float
    """Upper bound of an anchor's norm times a candidate's."""
    memory: int = DEFAULT_MEMORY
    themselves: Int64[np.ndarray, " anchors"] | None = None
    """Anchors' own rows in one set. They are among `positives`, as no list may hold them, but match nothing."""

    def rows(self, rows: Int64[np.ndarray, " some"]) -> Side:
        """Select some anchors."""
        anchors = np.ascontiguousarray(self.anchors[rows])
        themselves = None if self.themselves is None else self.themselves[rows]
        kept = self.positives.rows(rows)
        return Side(anchors, self.candidates, kept, self.h, self.longest, self.memory, themselves)

    def between(self, start: int, stop: int) -> Side:
        """Select a range of anchors, whose vectors are not copied."""
        anchors = np.ascontiguousarray(self.anchors[start:stop])
        themselves = None if self.themselves is None else self.themselves[start:stop]
        return replace(
            self, anchors=anchors, positives=self.positives.rows(np.arange(start, stop)), themselves=themselves
        )

    @property
    def matches(self) -> Positives:
        """Positives without the anchors themselves."""
        return self.positives if self.themselves is None else self.positives.without(self.themselves)

    @property
    def wanted(self) -> int:
        """Number of best candidates that surely hold h negatives."""
        return self.h + self.positives.most

    @property
    def rounding_error(self) -> float:
        """Error bound of a float32 dot product, added up in any order: (D + 1) 2^-24 |a| |c|."""
        return 1.01 * (self.anchors.shape[1] + 1) * 2.0**-24 * self.longest


@dataclass(frozen=True)
class Problem:
    """Two sides of memory-mapped vectors, the pairs that match, and the number of negatives that each side keeps.

    `positives` are rows (image, caption), in any order: an image may have many captions, a caption many images, and
    either none. A vector with the image of each caption (-1: none) is accepted too. An h of 0 leaves its
    direction out.

    In `one_set` the captions are the images, the same array: no row is its own negative, and pairs are positives both
    ways. The lists of either direction are then the same, so only the images' are searched, and `h_images` is 0.
    """

    images: Float32[np.ndarray, "images D"]
    captions: Float32[np.ndarray, "captions E"]
    positives: Integer[np.ndarray, "*shape"]
    h_captions: int
    h_images: int
    memory: int = DEFAULT_MEMORY
    """Approximate bytes that may be used beyond the vectors; the system caches those as it sees fit."""
    one_set: bool = False
    device: str = "auto"
    """Where `onepass` searches: auto (a GPU if torch sees one), cpu, cuda, or cuda:1; no list depends on it."""

    def __post_init__(self) -> None:
        for name, vectors in (("images", self.images), ("captions", self.captions)):
            if not len(vectors):
                raise ValueError(f"there are no {name} to mine; give at least one vector.")
        if self.images.shape[1] != self.captions.shape[1]:
            raise ValueError(
                f"images have {self.images.shape[1]} dimensions and captions {self.captions.shape[1]}; "
                "both must come from one model."
            )
        if self.one_set and (self.captions is not self.images or self.h_images):
            raise ValueError(
                "one set has one array of vectors and one h; give the array as both sides, and h_images=0."
            )
        pairs = pairs_of(self.positives, len(self.images), len(self.captions))
        object.__setattr__(self, "positives", both_ways(pairs) if self.one_set else pairs)
        if min(self.h_captions, self.h_images) < 0 or not self.directions:
            raise ValueError(
                f"h_captions is {self.h_captions} and h_images {self.h_images}; one must be at least 1, the other may "
                "be 0, which leaves its direction out."
            )
        for direction in self.directions:
            _, count, h, wanted = self.size(direction)
            if wanted > count:
                option, most = "h_captions" if direction == "i2t" else "h_images", wanted - h
                own = "positives, itself among them" if self.one_set else "positives"
                raise ValueError(
                    f"h={h} needs at least {wanted} candidates (each anchor has up to {most} {own}), "
                    f"got {count}; lower {option} to at most {count - most}."
                )

    def __getitem__(self, direction: Direction) -> Side:
        themselves = np.arange(len(self.images)) if self.one_set else None
        return Side(*self._sides[direction], self.longest, self.memory, themselves)

    def size(self, direction: Direction) -> Size:
        """Sizes of one direction, without reading a vector."""
        anchors, candidates, own, h = self._sides[direction]
        return Size(len(anchors), len(candidates), h, h + own.most)

    @cached_property
    def _sides(self) -> Mapping[Direction, tuple[np.ndarray, np.ndarray, Positives, int]]:
        images, captions = (with_itself(self.positives, len(self.images)) if self.one_set else self.positives).T
        i2t = Positives.of_pairs(images, captions, len(self.images))
        t2i = Positives.of_pairs(captions, images, len(self.captions))
        return {
            "i2t": (self.images, self.captions, i2t, self.h_captions),
            "t2i": (self.captions, self.images, t2i, self.h_images),
        }

    @property
    def directions(self) -> tuple[Direction, ...]:
        """Directions that are searched."""
        return tuple(direction for direction in DIRECTIONS if self._sides[direction][3] > 0)

    @cached_property
    def sha256(self) -> str:
        """Hash all vectors, pairs and depths."""
        shape = self.images.shape, self.captions.shape, self.h_captions, self.h_images
        found = sha256(repr((*shape, "one set") if self.one_set else shape).encode())
        for rows in (self.positives, self.images, self.captions):
            for start, stop in blocks(len(rows), BLOCK):
                found.update(np.ascontiguousarray(rows[start:stop]).data)
        return found.hexdigest()

    @cached_property
    def norms(self) -> tuple[float, float]:
        """Largest norm of an image, and of a caption."""
        return _longest(self.images, "images"), _longest(self.captions, "captions")

    @property
    def longest(self) -> float:
        """Upper bound of an image's norm times a caption's; refused if scores could leave float32."""
        for norm, name in zip(self.norms, ("images", "captions"), strict=True):
            if norm and not NORMS[0] <= norm <= NORMS[1]:
                raise ValueError(
                    f"the largest norm of the {name} is {norm:.3g}, and dot products do not fit into float32 unless it "
                    f"is from {NORMS[0]:g} to {NORMS[1]:g}; divide all {name} by a common factor, which changes no "
                    "list, or by their norms."
                )
        return math.prod(self.norms)


def blocks(count: int, size: int) -> list[tuple[int, int]]:
    """Start and stop of each block.

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
            raise ValueError(f"the vector in row {row} of the {name} is not finite; repair or remove it.")
        most = max(most, float(squares.max()))
    return math.sqrt(most)
