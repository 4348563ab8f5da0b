"""The negatives of some lists one by one, and what is known about images and captions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float32, Int32, Int64

from aoq.pipeline.search.lists import NegativeLists
from aoq.pipeline.search.problem import Direction, Positives, blocks, own_captions

BLOCK_ENTRIES = 2**20


@dataclass(frozen=True)
class Entries:
    """Listed negatives, list by list; `anchors` and `places` say where each stands in the table."""

    direction: Direction
    anchors: Int64[np.ndarray, " entries"]
    places: Int64[np.ndarray, " entries"]
    candidates: Int32[np.ndarray, " entries"]
    scores: Float32[np.ndarray, " entries"]
    positive_scores: Float32[np.ndarray, " entries"]

    @property
    def images(self) -> Int64[np.ndarray, " entries"]:
        return self.anchors if self.direction == "i2t" else self.candidates.astype(np.int64)

    @property
    def captions(self) -> Int64[np.ndarray, " entries"]:
        return self.candidates.astype(np.int64) if self.direction == "i2t" else self.anchors


def entry_blocks(direction: Direction, lists: NegativeLists) -> Iterator[Entries]:
    """All of them, some lists at a time."""
    for start, stop in blocks(len(lists), max(1, BLOCK_ENTRIES // lists.h)):
        ids = lists.negative_ids[start:stop]
        rows, places = np.nonzero(ids >= 0)
        scores = lists.scores[start:stop][rows, places]
        yield Entries(direction, rows + start, places, ids[rows, places], scores, lists.positive_scores[rows + start])


@dataclass(frozen=True)
class Knowledge:
    """What the rules may ask for, as far as it is there; vectors are unit vectors of one model."""

    image_count: int
    image_of: Int32[np.ndarray, " captions"]
    """The image of each caption; -1: of none."""
    texts: Sequence[str] | None = None
    images: Float32[np.ndarray, "images D"] | None = None
    captions: Float32[np.ndarray, "captions D"] | None = None
    matches: Int64[np.ndarray, " pairs"] | None = None
    """Pairs known to match, as `pair_keys`, rising."""
    pair_probabilities: Float32[np.ndarray, " captions"] | None = None
    """That the caption and the image it is paired with belong together."""

    @cached_property
    def captions_of(self) -> Positives:
        return own_captions(self.image_of, self.image_count)
