"""What is to be searched: two sets of vectors, the pairs that belong together, and how many negatives each keeps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float32, Int32, Int64, Integer

Direction = Literal["i2t", "t2i"]
DIRECTIONS: tuple[Direction, ...] = ("i2t", "t2i")
OTHER: Mapping[Direction, Direction] = {"i2t": "t2i", "t2i": "i2t"}
BLOCK = 4096
DEFAULT_MEMORY = 1_500_000_000
NORMS = 1e-12, 1e12
"""What a side's largest norm may be: between these no square or product on the way leaves float32 or counts for
nothing in it. A side of zeros may be, too."""


@dataclass(frozen=True)
class Positives:
    """The candidates that are no negatives: those of anchor n are `ids[offsets[n]:offsets[n + 1]]`."""

    ids: Int32[np.ndarray, " pairs"]
    offsets: Int64[np.ndarray, " anchors_and_one"]

    def __getitem__(self, anchor: int) -> Int32[np.ndarray, " own"]:
        return self.ids[self.offsets[anchor] : self.offsets[anchor + 1]]

    @classmethod
    def of_pairs(
        cls, anchors: Integer[np.ndarray, " pairs"], candidates: Integer[np.ndarray, " pairs"], count: int
    ) -> Positives:
        """Group pairs by the `count` anchors; an anchor's candidates rise."""
        order = np.lexsort((candidates, anchors))
        return cls(candidates[order].astype(np.int32), offsets_of(np.bincount(anchors, minlength=count)))

    def rows(self, rows: Int64[np.ndarray, " some"]) -> Positives:
        """Keep some anchors."""
        counts = np.diff(self.offsets)[rows]
        offsets = offsets_of(counts)
        places = np.arange(offsets[-1]) + np.repeat(self.offsets[rows] - offsets[:-1], counts)
        return Positives(self.ids[places], offsets)

    def without(self, rows: Integer[np.ndarray, " anchors"]) -> Positives:
        """Leave out one candidate of each anchor, where it is there."""
        kept = self.ids != np.repeat(rows, np.diff(self.offsets))
        return Positives(self.ids[kept], np.concatenate([[0], np.cumsum(kept)])[self.offsets].astype(np.int64))

    @property
    def most(self) -> int:
        return int(np.diff(self.offsets).max(initial=0))

    def lowest(self, scores: Float32[np.ndarray, " pairs"]) -> Float32[np.ndarray, " anchors"]:
        """Take the least score of each anchor's; NaN where it has none."""
        found = np.full(len(self.offsets) - 1, np.nan, dtype=np.float32)
        has = np.diff(self.offsets) > 0
        found[has] = np.minimum.reduceat(scores, self.offsets[:-1][has]) if has.any() else []
        return found


class Size(NamedTuple):
    """How large one direction of a problem is."""

    anchors: int
    candidates: int
    h: int
    wanted: int
    """How many of the best candidates are sure to hold h negatives."""


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
    themselves: Int64[np.ndarray, " anchors"] | None = None
    """In one set, the anchors' own rows: they are among `positives`, as no list may hold them, and match nothing."""

    def rows(self, rows: Int64[np.ndarray, " some"]) -> Side:
        """Keep some anchors."""
        anchors = np.ascontiguousarray(self.anchors[rows])
        themselves = None if self.themselves is None else self.themselves[rows]
        kept = self.positives.rows(rows)
        return Side(anchors, self.candidates, kept, self.h, self.longest, self.memory, themselves)

    @property
    def matches(self) -> Positives:
        """The positives without the anchors themselves."""
        return self.positives if self.themselves is None else self.positives.without(self.themselves)

    @property
    def wanted(self) -> int:
        """How many of the best candidates are sure to hold h negatives."""
        return self.h + self.positives.most

    @property
    def rounding_error(self) -> float:
        """How far a float32 dot product, added up in any order, can be from the exact one: (D + 1) 2^-24 |a| |c|."""
        return 1.01 * (self.anchors.shape[1] + 1) * 2.0**-24 * self.longest


@dataclass(frozen=True)
class Problem:
    """Two sides of vectors, memory-mapped, the pairs that belong together, and how many negatives each side keeps.

    `positives` are rows (image, caption), in any order: an image may have many captions, a caption many images, and
    either none. A vector with the image of each caption (-1: of none) is taken too. An h of 0 leaves its
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
    """Bytes that may be used beyond the vectors, about; the system keeps those in memory as it sees fit."""
    one_set: bool = False

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
        """Count one direction without reading a vector."""
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
        """Those that are searched."""
        return tuple(direction for direction in DIRECTIONS if self._sides[direction][3] > 0)

    @cached_property
    def sha256(self) -> str:
        """The hash of all vectors, pairs and depths."""
        shape = self.images.shape, self.captions.shape, self.h_captions, self.h_images
        found = sha256(repr((*shape, "one set") if self.one_set else shape).encode())
        for rows in (self.positives, self.images, self.captions):
            for start, stop in blocks(len(rows), BLOCK):
                found.update(np.ascontiguousarray(rows[start:stop]).data)
        return found.hexdigest()

    @cached_property
    def norms(self) -> tuple[float, float]:
        """The largest norm of an image, and of a caption."""
        return _longest(self.images, "images"), _longest(self.captions, "captions")

    @property
    def longest(self) -> float:
        """No image's norm times a caption's is more; refused where scores could leave float32."""
        for norm, name in zip(self.norms, ("images", "captions"), strict=True):
            if norm and not NORMS[0] <= norm <= NORMS[1]:
                raise ValueError(
                    f"the largest norm of the {name} is {norm:.3g}, and dot products do not fit into float32 unless it "
                    f"is from {NORMS[0]:g} to {NORMS[1]:g}; divide all {name} by a common factor, which changes no "
                    "list, or by their norms."
                )
        return math.prod(self.norms)


def pairs_of(given: Integer[np.ndarray, "*shape"], images: int, captions: int) -> Int32[np.ndarray, "pairs 2"]:
    """Pairs (image, caption), each once, by caption and then by image."""
    if given.ndim == 1:
        if len(given) != captions:
            raise ValueError(f"{len(given)} captions are paired with images, and {captions} are there.")
        if len(outside := np.flatnonzero((given < -1) | (given >= images))):
            raise ValueError(
                f"caption {outside[0]} is paired with image {given[outside[0]]}, and there are images 0 to "
                f"{images - 1} (-1: of none)."
            )
        paired = np.flatnonzero(given >= 0)
        return np.stack([given[paired], paired], axis=1).astype(np.int32)
    if given.ndim != 2 or given.shape[1] != 2:
        raise ValueError(
            f"positives have shape {given.shape}; give (n, 2) rows (image, caption), or an image a caption."
        )
    for name, rows, count in (("image", given[:, 0], images), ("caption", given[:, 1], captions)):
        if len(outside := np.flatnonzero((rows < 0) | (rows >= count))):
            raise ValueError(
                f"pair {outside[0]} names {name} {rows[outside[0]]}, and there are {name}s 0 to {count - 1}."
            )
    keys = np.unique(given[:, 1].astype(np.int64) * images + given[:, 0])
    return np.stack([keys % images, keys // images], axis=1).astype(np.int32)


def both_ways(pairs: Integer[np.ndarray, "given 2"]) -> Int32[np.ndarray, "pairs 2"]:
    """Pairs within one set in both orders, each once; without those of a row and itself.

    >>> both_ways(np.array([[0, 2], [1, 1], [2, 0]])).tolist()
    [[2, 0], [0, 2]]
    """
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    first, second = np.unique(np.concatenate([pairs, pairs[:, ::-1]]).astype(np.int64), axis=0).T
    return np.stack([second, first], axis=1).astype(np.int32)


def with_itself(pairs: Int32[np.ndarray, "pairs 2"], rows: int) -> Int32[np.ndarray, "more 2"]:
    """Pairs within one set, and each of its rows with itself."""
    return np.concatenate([pairs, np.repeat(np.arange(rows, dtype=np.int32)[:, None], 2, axis=1)])


def own_captions(image_of: Int32[np.ndarray, " captions"], images: int) -> Positives:
    """The captions of every image, rising; those of no image (-1) are left out."""
    captions = np.flatnonzero(image_of >= 0)
    return Positives.of_pairs(image_of[captions], captions, images)


def positive_pairs_of(
    image_of: Integer[np.ndarray, " captions"], identity: Integer[np.ndarray, " images"] | None = None
) -> Int32[np.ndarray, "pairs 2"]:
    """Rows (image, caption), by caption: the caption's image, and all that are the same photograph by `identity`.

    >>> positive_pairs_of(np.array([0, 1, 2], np.int32), np.array([5, 6, 5], np.int32)).tolist()
    [[0, 0], [2, 0], [1, 1], [0, 2], [2, 2]]
    """
    captions = np.arange(len(image_of), dtype=np.int32)
    if identity is None:
        return np.stack([image_of, captions], axis=1).astype(np.int32)
    order = np.argsort(identity, kind="stable")
    numbers = identity[order]
    first, after = (np.searchsorted(numbers, identity[image_of], side) for side in ("left", "right"))
    counts = after - first
    places = np.arange(counts.sum()) + np.repeat(first - offsets_of(counts)[:-1], counts)
    return np.stack([order[places], np.repeat(captions, counts)], axis=1).astype(np.int32)


def offsets_of(counts: Integer[np.ndarray, " groups"]) -> Int64[np.ndarray, " groups_and_one"]:
    """Where each of several groups of these sizes starts, and where the last one stops.

    >>> offsets_of(np.array([2, 0, 1])).tolist()
    [0, 2, 2, 3]
    """
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


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
            raise ValueError(f"the vector in row {row} of the {name} is not finite; repair or remove it.")
        most = max(most, float(squares.max()))
    return math.sqrt(most)
