"""One direction of a table to be exported, as rows of anchors with their positives and negatives."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
import pyarrow as pa
from jaxtyping import Float32, Int32, Int64

from aoq.pipeline.search.lists import NegativeLists
from aoq.pipeline.search.positives import Positives
from aoq.pipeline.search.problem import Direction
from aoq.pipeline.search.scores import exact_scores

BLOCK_ANCHORS = 256
"""Anchors processed together: as triplets with 5 positives and 300 negatives they are 384,000 rows."""

Documents = Int32[np.ndarray, "rows places"]


@dataclass(frozen=True)
class Names:
    """The id of each row of one side, and its text or picture."""

    ids: Sequence[str]
    values: Sequence[str] = ()
    """Texts, or the absolute paths of pictures; empty if a format has ids alone."""
    are_pictures: bool = False
    noun: str = "caption"
    """Name of a row in tables and columns: image, caption, or item of one set."""

    # 64-bit offsets: the values taken from these may exceed 2 GB.
    @cached_property
    def id_column(self) -> pa.Array:
        return pa.array(self.ids, pa.large_string())

    @cached_property
    def value_column(self) -> pa.Array:
        return pa.array(self.values, pa.large_string())


@dataclass(frozen=True)
class ExportRows:
    """Rows of an export: an anchor each, its positives and its negatives by rank, padded with -1, and their scores."""

    anchors: Int64[np.ndarray, " rows"]
    positives: Int32[np.ndarray, "rows own"]
    negatives: Int32[np.ndarray, "rows listed"]
    positive_scores: Float32[np.ndarray, "rows own"]
    negative_scores: Float32[np.ndarray, "rows listed"]

    def __getitem__(self, rows: np.ndarray) -> ExportRows:
        return ExportRows(*(column[rows] for column in vars(self).values()))

    @property
    def documents(self) -> Documents:
        return np.concatenate([self.positives, self.negatives], axis=1)

    @property
    def scores(self) -> Float32[np.ndarray, "rows places"]:
        return np.concatenate([self.positive_scores, self.negative_scores], axis=1)


def anchors_with_both(rows: ExportRows) -> ExportRows:
    """Keep the anchors that have a positive and a negative."""
    return rows[np.any(rows.positives >= 0, axis=1) & np.any(rows.negatives >= 0, axis=1)]


def pairs(rows: ExportRows) -> ExportRows:
    """Make a row for each anchor with one of its positives; anchors without negatives are left out."""
    return _one_each(anchors_with_both(rows), "positive")


def full_pairs(rows: ExportRows) -> ExportRows:
    """Make the same rows as `pairs`, without those that have fewer negatives than there are places."""
    rows = pairs(rows)
    return rows[rows.negatives[:, -1] >= 0]


def triplets(rows: ExportRows) -> ExportRows:
    """Make a row for each pair and each of its negatives."""
    return _one_each(pairs(rows), "negative")


def _one_each(rows: ExportRows, part: Literal["positive", "negative"]) -> ExportRows:
    """Make a row for each positive, or for each negative."""
    documents, scores = (getattr(rows, name) for name in (f"{part}s", f"{part}_scores"))
    at = np.nonzero(documents >= 0)
    columns = {f"{part}s": documents[at][:, None], f"{part}_scores": scores[at][:, None]}
    return replace(rows[at[0]], **columns)


def labelled_documents(rows: ExportRows) -> ExportRows:
    """Make a row for each positive, then for each negative, of anchors that have positives."""
    documents, scores, own = rows.documents, rows.scores, rows.positives.shape[1]
    row, place = at = np.nonzero((documents >= 0) & np.any(rows.positives >= 0, axis=1)[:, None])
    document, score, is_own = documents[at][:, None], scores[at][:, None], (place < own)[:, None]
    padding, none = np.int32(-1), np.float32(np.nan)
    return ExportRows(
        rows.anchors[row],
        np.where(is_own, document, padding),
        np.where(is_own, padding, document),
        np.where(is_own, score, none),
        np.where(is_own, none, score),
    )


@dataclass(frozen=True)
class Outgoing:
    """The lists of one direction, in blocks from anchor 0 on, and everything that a format may need about them."""

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
                f"an anchor has up to {self.positives.most} positives, and the table keeps only the lowest score of "
                "each anchor's; give --vectors IMAGES CAPTIONS, which it was mined from, to score them all."
            )

    def rows(self) -> Iterator[ExportRows]:
        """Iterate over blocks of anchors, one row for each anchor."""
        first = 0
        for lists in self.lists:
            anchors, head = np.arange(first, first + len(lists)), lists.head(self.depth)
            own = self.positives.rows(anchors)
            is_own = np.arange(own.most) < np.diff(own.offsets)[:, None]
            positives = np.full(is_own.shape, -1, np.int32)
            scores = np.full(is_own.shape, np.nan, np.float32)
            positives[is_own] = own.ids
            if self.scored:
                scores[is_own] = self._score_positives(first, lists.positive_score, own)
            yield ExportRows(anchors, positives, head.negative_ids, scores, head.scores)
            first += len(lists)

    def _score_positives(
        self, first: int, lowest: Float32[np.ndarray, " anchors"], own: Positives
    ) -> Float32[np.ndarray, " pairs"]:
        """Score positives exactly; refuse vectors that do not reproduce the anchors' lowest scores."""
        has_positive = np.diff(own.offsets) > 0
        if self.vectors is None:
            return lowest[has_positive]
        anchors, candidates = self.vectors
        scores = exact_scores(anchors[first : first + len(lowest)], candidates, own.offsets, own.ids)
        computed = own.lowest(scores)
        if len(different := np.flatnonzero(has_positive & (computed != lowest))):
            row = different[0]
            raise ValueError(
                f"the vectors give anchor {first + row} a lowest positive score of {computed[row]:.6g}, the table has "
                f"{lowest[row]:.6g}; give the vectors that the table was mined from."
            )
        return scores
