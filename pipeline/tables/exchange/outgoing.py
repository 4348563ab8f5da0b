"""One direction of a table on its way to another format."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from jaxtyping import Bool, Float32, Int32, Int64

from aoq.pipeline.search.lists import NegativeLists
from aoq.pipeline.search.problem import Direction, Positives, blocks
from aoq.pipeline.search.scores import exact_scores

ROWS = 256
"""So many anchors are looked at together: as triplets with 5 positives and 300 negatives they are 384,000 rows."""


@dataclass(frozen=True)
class Names:
    """What stands for the rows of one side: an id each, and a text each (an image's is its id)."""

    ids: Sequence[str]
    texts: Sequence[str]


@dataclass(frozen=True)
class Chunk:
    """Some anchors, from number `first`: their negatives, the real ones in front, and their positives."""

    first: int
    ids: Int32[np.ndarray, "anchors h"]
    scores: Float32[np.ndarray, "anchors h"]
    positives: Positives
    positive_scores: Float32[np.ndarray, " pairs"] | None
    """Of each of `positives`; None where they are not asked for."""

    @property
    def has_positive(self) -> Bool[np.ndarray, " anchors"]:
        return np.diff(self.positives.offsets) > 0

    @property
    def is_real(self) -> Bool[np.ndarray, "anchors h"]:
        return self.ids >= 0

    @property
    def lengths(self) -> Int64[np.ndarray, " anchors"]:
        return self.is_real.sum(axis=1)


@dataclass(frozen=True)
class Vectors:
    """What the table was mined from; gives the scores of all positives, of which the table keeps the lowest."""

    anchors: Float32[np.ndarray, "anchors D"]
    candidates: Float32[np.ndarray, "candidates D"]

    def positive_scores(
        self, first: int, lowest: Float32[np.ndarray, " anchors"], positives: Positives
    ) -> Float32[np.ndarray, " pairs"]:
        """Exact; refuses vectors that do not give the anchors' lowest scores again."""
        rows = self.anchors[first : first + len(lowest)]
        scores = exact_scores(rows, self.candidates, positives.offsets, positives.ids)
        has = np.diff(positives.offsets) > 0
        found = np.minimum.reduceat(scores, positives.offsets[:-1][has]) if has.any() else scores
        if len(other := np.flatnonzero(found != lowest[has])):
            anchor = first + int(np.flatnonzero(has)[other[0]])
            raise ValueError(
                f"the vectors give anchor {anchor} a lowest positive score of {found[other[0]]:.6g}, the table has "
                f"{lowest[anchor - first]:.6g}; give the vectors that the table was mined from."
            )
        return scores


@dataclass(frozen=True)
class Outgoing:
    """The lists of one direction, and all that a format may want to know of them.

    `lists` are NegativeLists from anchor 0 on, of any number of rows; -1 anywhere in a row is no negative.
    """

    direction: Direction
    lists: Iterable[NegativeLists]
    anchors: Names
    candidates: Names
    positives: Positives
    depth: int
    """At most so many negatives of each anchor are taken, from the head of its list."""
    scored: bool = False
    vectors: Vectors | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.scored and self.vectors is None and self.positives.most > 1:
            raise ValueError(
                f"of the up to {self.positives.most} positives of an image the table keeps the lowest score only; "
                "give --vectors IMAGES CAPTIONS, what it was mined from, for those of all."
            )

    def chunks(self) -> Iterator[Chunk]:
        first = 0
        for lists in self.lists:
            for start, stop in blocks(len(lists), ROWS):
                rows = slice(start, stop)
                order = np.argsort(lists.negative_ids[rows] < 0, axis=1, kind="stable")[:, : self.depth]
                ids = np.take_along_axis(lists.negative_ids[rows], order, axis=1)
                scores = np.take_along_axis(lists.scores[rows], order, axis=1)
                lowest = lists.positive_score[rows]
                own = self.positives.rows(np.arange(first, first + stop - start))
                yield Chunk(first, ids, scores, own, self._positive_scores(first, lowest, own))
                first += stop - start

    @property
    def empty_chunk(self) -> Chunk:
        shape, scores = (0, self.depth), np.empty(0, np.float32) if self.scored else None
        own = self.positives.rows(np.empty(0, np.int64))
        return Chunk(0, np.empty(shape, np.int32), np.empty(shape, np.float32), own, scores)

    def _positive_scores(
        self, first: int, lowest: Float32[np.ndarray, " anchors"], own: Positives
    ) -> Float32[np.ndarray, " pairs"] | None:
        if not self.scored:
            return None
        if self.vectors is not None:
            return self.vectors.positive_scores(first, lowest, own)
        return lowest[np.diff(own.offsets) > 0]


def check_ids(ids: Sequence[str]) -> None:
    if len(rows := {name: row for row, name in enumerate(ids)}) < len(ids):
        row = next(row for row, name in enumerate(ids) if rows[name] != row)
        raise ValueError(f"images {row} and {rows[ids[row]]} both have the id {ids[row]!r}; give each image its own.")


def string_array(texts: Sequence[str]) -> pa.Array:
    """64-bit offsets: what is taken from it may be more than 2 GB."""
    return pa.array(texts, pa.large_string())
