"""Inputs of a screen's rules besides the listed negatives: files, texts, vectors, and values from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from jaxtyping import Float32, Float64, Int64

from aoq.pipeline.config.screen import Screen
from aoq.pipeline.search.positives import Positives, both_ways, with_itself
from aoq.pipeline.search.problem import DIRECTIONS, Direction
from aoq.pipeline.tables.pairs import Pairs, pair_keys
from aoq.pipeline.tables.screens.entries import Entries
from aoq.pipeline.tables.screens.judgements import Judgements
from aoq.pipeline.tables.screens.likeness import Texts, nearest_own
from aoq.pipeline.tables.table import NegativeTable
from aoq.pipeline.vectors import norms_of


@dataclass(frozen=True)
class Knowledge:
    """Inputs of rules besides the table, as far as given; a side's vectors are of one model."""

    texts: Sequence[str] | None = None
    images: Float32[np.ndarray, "images D"] | None = None
    captions: Float32[np.ndarray, "captions D"] | None = None
    matches: Pairs | None = None
    """Pairs known to match, rows (image, caption)."""
    pair_probabilities: Float32[np.ndarray, " captions"] | None = None
    """Probability that a caption and its paired image belong together."""
    judgements: Judgements | None = None
    """Judgements; of one set with the lower row first."""


KNOWN = {
    "texts": "the captions' texts (--texts)",
    "images": "the images' vectors (--image-vectors)",
    "captions": "the captions' vectors (--caption-vectors)",
    "matches": "a file of pairs known to match",
    "judgements": "a judge's file of pairs and probabilities",
    "pair_probabilities": "how probably the captions' pairs are right (--pair-probabilities)",
}
"""The way a user gives each field of Knowledge."""


@dataclass(frozen=True)
class Context:
    """Inputs of rules besides the entries."""

    table: NegativeTable
    known: Knowledge
    screen: Screen

    @cached_property
    def own(self) -> dict[Direction, Positives]:
        """Captions of images (i2t), and images of captions (t2i)."""
        return {direction: self.table.own(direction) for direction in DIRECTIONS}

    @cached_property
    def texts(self) -> Texts:
        own, rows = self.own["i2t"], len(self.table.i2t)
        if self.table.is_one_set and self.table.positives is not None:  # here positives are texts that match, too
            anchors, candidates = with_itself(self.table.positives, rows).T
            own = Positives.of_pairs(anchors, candidates, rows)
        return Texts(self.known.texts or (), own)

    @cached_property
    def _norms(self) -> dict[str, Float64[np.ndarray, " items"]]:
        given = {"images": self.known.images, "captions": self.known.captions}
        return {side: norms_of(vectors, side) for side, vectors in given.items() if vectors is not None}

    def nearest_own(self, side: Literal["images", "captions"], entries: Entries) -> Float32[np.ndarray, " entries"]:
        """Cosine of each listed image and the most similar one of the caption's own, or the other way round."""
        images, captions = entries.images, entries.captions
        rows, owners, own = (
            (images, captions, self.own["t2i"]) if side == "images" else (captions, images, self.own["i2t"])
        )
        vectors = getattr(self.known, side)  # check_knowledge made sure
        return nearest_own(vectors, self._norms[side], rows, owners, own)

    @cached_property
    def matches(self) -> Int64[np.ndarray, " pairs"]:
        assert self.known.matches is not None  # check_knowledge made sure
        images, captions = (both_ways(self.known.matches) if self.table.is_one_set else self.known.matches).T
        return np.unique(pair_keys(images, captions, len(self.table.t2i)))

    def keys(self, entries: Entries) -> Int64[np.ndarray, " entries"]:
        """Number each pair of an image and a caption."""
        return pair_keys(entries.images, entries.captions, len(self.table.t2i))

    def judged(self, entries: Entries) -> Float32[np.ndarray, " entries"]:
        """Probability by the judge that each pair matches; NaN if it was not judged."""
        assert self.known.judgements is not None  # check_knowledge made sure
        images, captions = entries.images, entries.captions
        if self.table.is_one_set:  # either order is the same pair
            images, captions = np.minimum(images, captions), np.maximum(images, captions)
        rows = len(self.table.t2i)
        return self.known.judgements.of(pair_keys(images, captions, rows), rows)
