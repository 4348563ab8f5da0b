"""One direction of a table to be written in another format, and code that writers of formats share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32, Int32, Int64

from aoq.pipeline.search.lists import NegativeLists
from aoq.pipeline.search.positives import Positives
from aoq.pipeline.search.problem import Direction
from aoq.pipeline.search.scores import exact_scores

ROWS = 256
"""Anchors processed together: as triplets with 5 positives and 300 negatives they are 384,000 rows."""


@dataclass(frozen=True)
class Names:
    """Stand-ins for the rows of one side: an id each, and a text or a picture each."""

    ids: Sequence[str]
    values: Sequence[str] = ()
    """Texts, or the absolute paths of pictures; empty if a format has ids alone."""
    are_pictures: bool = False
    noun: str = "caption"
    """Name of a row in tables and columns: image, caption, or item of one set."""


@dataclass(frozen=True)
class Chunk:
    """Some anchors, from number `first`: the heads of their lists, and their positives."""

    first: int
    lists: NegativeLists
    positives: Positives
    positive_scores: Float32[np.ndarray, " pairs"]
    """One for each of `positives`; NaN if they are not requested."""

    @property
    def pair_rows(self) -> Int64[np.ndarray, " pairs"]:
        """Row of the anchor of each positive."""
        return np.repeat(np.arange(len(self.lists)), np.diff(self.positives.offsets))


class Listed(NamedTuple):
    """One anchor: its positives and the head of its list, without padding."""

    anchor: int
    positives: Int32[np.ndarray, " own"]
    positive_scores: Float32[np.ndarray, " own"]
    negatives: Int32[np.ndarray, " listed"]
    scores: Float32[np.ndarray, " listed"]


@dataclass(frozen=True)
class Outgoing:
    """The lists of one direction, in blocks from anchor 0 on, and everything that a format may need about them.

    `lists` can be iterated again.
    """

    direction: Direction
    lists: Iterable[NegativeLists]
    anchors: Names
    candidates: Names
    positives: Positives
    depth: int
    """Negatives taken from the head of each anchor's list, at most."""
    scored: bool
    vectors: tuple[Float32[np.ndarray, "anchors D"], Float32[np.ndarray, "candidates D"]] | None
    """Vectors from which the table was mined: they give all positives' scores, of which the table keeps the lowest."""
    packed: bool = False
    """True if pictures are written as the content of their files, else as their paths."""
    other: Outgoing | None = None
    """The other direction, for a format whose rows have both."""

    def __post_init__(self) -> None:
        if self.scored and self.vectors is None and self.positives.most > 1:
            raise ValueError(
                f"of the up to {self.positives.most} positives of an anchor the table keeps the lowest score only; "
                "give --vectors IMAGES CAPTIONS, what it was mined from, for those of all."
            )

    def chunks(self) -> Iterator[Chunk]:
        first = 0
        for lists in self.lists:
            own = self.positives.rows(np.arange(first, first + len(lists)))
            scores = self._positive_scores(first, lists.positive_score, own)
            yield Chunk(first, lists.head(self.depth), own, scores)
            first += len(lists)

    def listed(self) -> Iterator[Listed]:
        for chunk in self.chunks():
            lists, offsets = chunk.lists, chunk.positives.offsets
            for row, length in enumerate(lists.lengths.tolist()):
                own, head = slice(offsets[row], offsets[row + 1]), (row, slice(length))
                positives = chunk.positives.ids[own], chunk.positive_scores[own]
                yield Listed(chunk.first + row, *positives, lists.negative_ids[head], lists.scores[head])

    def complete(self) -> Iterator[Listed]:
        """Lists with a positive and a negative."""
        return (one for one in self.listed() if len(one.positives) and len(one.negatives))

    def _positive_scores(
        self, first: int, known: Float32[np.ndarray, " anchors"], own: Positives
    ) -> Float32[np.ndarray, " pairs"]:
        """Score positives exactly; refuse vectors that do not reproduce the anchors' lowest scores."""
        if not self.scored:
            return np.full(len(own.ids), np.nan, np.float32)
        has = np.diff(own.offsets) > 0
        if self.vectors is None:
            return known[has]
        anchors, candidates = self.vectors
        scores = exact_scores(anchors[first : first + len(known)], candidates, own.offsets, own.ids)
        found = own.lowest(scores)
        if len(other := np.flatnonzero(has & (found != known))):
            row = other[0]
            raise ValueError(
                f"the vectors give anchor {first + row} a lowest positive score of {found[row]:.6g}, the table has "
                f"{known[row]:.6g}; give the vectors that the table was mined from."
            )
        return scores


@dataclass(frozen=True)
class Written:
    """Number of rows (lines) in the file, and number of anchors left out because they lack what a row needs."""

    rows: int
    anchors_left_out: int = 0
