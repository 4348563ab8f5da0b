"""A search problem: two sets of vectors, the matching pairs, and the depth of each direction's lists."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float32, Float64, Int64, Integer

from aoq.pipeline.engine import in_parallel
from aoq.pipeline.search.positives import Positives, both_ways, unique_pairs, with_itself

logger = logging.getLogger(__name__)
Direction = Literal["i2t", "t2i"]
DIRECTIONS: tuple[Direction, ...] = ("i2t", "t2i")
OPPOSITE: Mapping[Direction, Direction] = {"i2t": "t2i", "t2i": "i2t"}
READ_ROWS = 4096
DEFAULT_MEMORY = 1_500_000_000
NORMS = 1e-12, 1e12
"""Limits of a side's largest norm, between which no square or product overflows or underflows float32.
A side of zeros is allowed too."""

SCORING = 14.0
"""Cost of an exact score, in products."""
FEWEST_EXPECTED = 2.0
FIRST_DEVIATIONS = 2.8
"""Standard deviations by which a limit's rank exceeds the expected one; about one limit in 100 is too high."""


class ProblemSize(NamedTuple):
    """Sizes of one direction of a problem."""

    anchors: int
    candidates: int
    h: int
    wanted: int
    """Number of best candidates that are sure to contain h negatives, or all of them."""

    @classmethod
    def of(cls, anchors: int, candidates: int, h: int, positives: Positives) -> ProblemSize:
        return cls(anchors, candidates, h, min(candidates, h + positives.most))

    def sample(self, deviations: float = FIRST_DEVIATIONS) -> tuple[int, int]:
        """Return the number of candidates to sample, and the rank in the sample of the score that becomes the limit.

        A sample of e N / w candidates contains on average e of an anchor's w best among N. The rank is d standard
        deviations beyond e, so about w (1 + d / sqrt(e)) candidates reach the limit. Sampling and the exact scores,
        each of which costs c products, cost least in total if e = (c d w^2 / 2 N)^(2/3).

        >>> ProblemSize(anchors=29_000, candidates=145_000, h=300, wanted=305).sample()
        (2571, 12)
        """
        count, wanted = self.candidates, max(1, self.wanted)
        expected = max(FEWEST_EXPECTED, (SCORING * FIRST_DEVIATIONS * wanted**2 / (2 * count)) ** (2 / 3))
        sampled = min(count, math.ceil(expected * count / wanted))
        expected = sampled * wanted / count
        deviation = math.sqrt(expected * (1 - sampled / count))
        return sampled, min(sampled, math.ceil(expected + deviations * deviation))

    @property
    def kept_share(self) -> float:
        """The fraction of the pairs that is expected to reach the limits."""
        sampled, rank = self.sample()
        return rank / sampled


@dataclass(frozen=True)
class Side:
    """One direction of a problem."""

    anchors: Float32[np.ndarray, "anchors D"]
    candidates: Float32[np.ndarray, "candidates D"]
    anchor_norms: Float64[np.ndarray, " anchors"]
    candidate_norms: Float64[np.ndarray, " candidates"]
    """Upper bounds of the norms."""
    positives: Positives
    h: int
    memory: int = DEFAULT_MEMORY
    device: str = "auto"
    one_set: bool = False
    """True if `positives` contains anchors themselves, so that no list does, though they are not matches."""
    cache: dict[str, Any] = field(default_factory=dict, repr=False)
    """Device state that a search reuses for other selections of anchors."""

    def rows(self, rows: Int64[np.ndarray, " some"] | slice) -> Side:
        """Select anchors; the vectors of a slice are not copied."""
        return replace(
            self,
            anchors=self.anchors[rows],
            anchor_norms=self.anchor_norms[rows],
            positives=self.positives.rows(np.arange(len(self.anchors))[rows]),
        )

    @property
    def size(self) -> ProblemSize:
        return ProblemSize.of(len(self.anchors), len(self.candidates), self.h, self.positives)


@dataclass(frozen=True, eq=False)
class Problem:
    """Two sides of memory-mapped vectors, the matching pairs, and the number of negatives per anchor of each side.

    `positives` are rows (image, caption) in any order: an image may have many captions, a caption many images, and
    either may have none. A vector with the image of each caption (-1: none) is accepted too. An h of 0 leaves its
    direction out.

    With `one_set`, images and captions are the same array: no row is its own negative, and pairs count both ways. Both
    directions have the same lists, so only the images' are searched, and `h_images` is 0.
    """

    images: Float32[np.ndarray, "images D"]
    captions: Float32[np.ndarray, "captions E"]
    positives: Integer[np.ndarray, "*shape"]
    h_captions: int
    h_images: int
    memory: int = DEFAULT_MEMORY
    """Approximate bytes that may be used beyond the vectors, which are memory-mapped."""
    one_set: bool = False
    device: str = "auto"
    """auto (a GPU if torch sees one), cpu, cuda, or cuda:1; lists do not depend on it."""
    known_norms: tuple[Float64[np.ndarray, " images"], Float64[np.ndarray, " captions"]] | None = None
    """Upper bounds of the norms, if they were computed while the vectors were read."""
    _caches: dict[Direction, dict[str, Any]] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        for name, vectors in (("images", self.images), ("captions", self.captions)):
            if not len(vectors):
                raise ValueError(f"there are no {name} to mine; give at least one vector.")
        if self.images.shape[1] != self.captions.shape[1]:
            both = f"{self.images.shape[1]} and {self.captions.shape[1]} dimensions"
            raise ValueError(f"the vectors of the two sides have {both}; both must come from one model.")
        if self.one_set and (self.captions is not self.images or self.h_images):
            raise ValueError(
                "one_set takes one array of vectors and one h; give the array as both sides, and h_images=0."
            )
        pairs = unique_pairs(self.positives, len(self.images), len(self.captions))
        if self.one_set and (alone := int((pairs[:, 0] == pairs[:, 1]).sum())):
            logger.info("ignored %d pairs of a row with itself", alone)
        object.__setattr__(self, "positives", both_ways(pairs) if self.one_set else pairs)
        if min(self.h_captions, self.h_images) < 0 or not self.directions:
            raise ValueError(
                f"h_captions is {self.h_captions} and h_images {self.h_images}; one must be at least 1, the other may "
                "be 0, which leaves its direction out."
            )
        for direction in self.directions:
            _, candidates, own, h = self._sides[direction]
            longest = len(candidates) - int(np.diff(own.offsets).min())
            if h > longest:
                remedy = f"lower it to at most {longest}" if longest else "add items that are not all paired"
                option = "h_captions" if direction == "i2t" else "h_images"
                raise ValueError(f"{option} = {h}, but {direction} lists have at most {longest} negatives; {remedy}.")

    def __getitem__(self, direction: Direction) -> Side:
        anchors, candidates, own, h = self._sides[direction]
        norms = self.row_norms if direction == "i2t" else self.row_norms[::-1]
        cache = self._caches.setdefault(direction, {})
        return Side(anchors, candidates, *norms, own, h, self.memory, self.device, self.one_set, cache)

    def size(self, direction: Direction) -> ProblemSize:
        """Sizes of one direction, without reading a vector."""
        anchors, candidates, own, h = self._sides[direction]
        return ProblemSize.of(len(anchors), len(candidates), h, own)

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
        """The directions that are searched."""
        return tuple(direction for direction in DIRECTIONS if self._sides[direction][3] > 0)

    @cached_property
    def sha256(self) -> str:
        """Hash all vectors, pairs and depths."""
        shape = self.images.shape, self.captions.shape, self.h_captions, self.h_images
        hasher = sha256(repr((*shape, "one set") if self.one_set else shape).encode())
        for rows in (self.positives, self.images, self.captions):
            for start, stop in blocks(len(rows), READ_ROWS):
                hasher.update(np.ascontiguousarray(rows[start:stop]).data)
        return hasher.hexdigest()

    @cached_property
    def row_norms(self) -> tuple[Float64[np.ndarray, " images"], Float64[np.ndarray, " captions"]]:
        """Upper bounds of the norms of images and captions, checked so that no score overflows float32."""
        if (norms := self.known_norms) is None:
            images = _norms(self.images, "images")
            norms = images, images if self.one_set else _norms(self.captions, "captions")
        for name, own in zip(("images", "captions"), norms, strict=True):
            if (largest := own.max()) and not NORMS[0] <= largest <= NORMS[1]:
                raise ValueError(
                    f"the largest norm of the {name} is {largest:.3g}, but dot products fit into float32 only if it is "
                    f"between {NORMS[0]:g} and {NORMS[1]:g}; divide all {name} by a common factor, which changes no "
                    "list, or by their norms."
                )
        return norms


def longest_lists(
    positives: Integer[np.ndarray, "*shape"], images: int, captions: int, *, one_set: bool = False
) -> dict[Direction, int]:
    """Return the most negatives that any anchor of a direction has; lists of anchors with fewer are padded.

    >>> longest_lists(np.array([0, 0, 1]), 2, 3)
    {'i2t': 2, 't2i': 1}
    """
    pairs = unique_pairs(positives, images, captions)
    pairs = with_itself(both_ways(pairs), images) if one_set else pairs
    fewest = (int(np.bincount(rows, minlength=n).min()) for rows, n in zip(pairs.T, (images, captions), strict=True))
    return {"i2t": captions - next(fewest), "t2i": images - next(fewest)}


def blocks(count: int, size: int) -> list[tuple[int, int]]:
    """Start and stop of each block.

    >>> blocks(5, 2)
    [(0, 2), (2, 4), (4, 5)]
    """
    return [(start, min(start + size, count)) for start in range(0, count, size)]


def _norms(vectors: Float32[np.ndarray, "items D"], name: str) -> Float64[np.ndarray, " items"]:
    norms = np.empty(len(vectors))
    in_parallel(_write_norms, len(vectors), vectors, norms)
    if not np.isfinite(norms).all():
        row = int(np.flatnonzero(~np.isfinite(norms))[0])
        raise ValueError(f"the vector in row {row} of the {name} is not finite; repair or remove it.")
    return norms


def _write_norms(start: int, stop: int, vectors: np.ndarray, norms: np.ndarray) -> None:
    for first, last in blocks(stop - start, READ_ROWS // 16):
        part = vectors[start + first : start + last].astype(np.float64)
        norms[start + first : start + last] = np.sqrt(np.einsum("nd,nd->n", part, part)) * (1 + 2.0**-20)
