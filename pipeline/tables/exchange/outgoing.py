"""One direction of a table on its way to another format, and what writers of formats share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Bool, Float32, Int32, Int64

from aoq.pipeline.search.lists import NegativeLists
from aoq.pipeline.search.problem import Direction, Positives
from aoq.pipeline.search.scores import exact_scores

ROWS = 256
"""How many anchors are looked at together: as triplets with 5 positives and 300 negatives they are 384,000 rows."""
GROUP_BYTES = 64_000_000


@dataclass(frozen=True)
class Names:
    """What stands for the rows of one side: an id each, and a text each (an image's is its id)."""

    ids: Sequence[str]
    texts: Sequence[str]


def check_ids(ids: Sequence[str]) -> None:
    """Refuse images that share an id."""
    if len(rows := {name: row for row, name in enumerate(ids)}) < len(ids):
        row = next(row for row, name in enumerate(ids) if rows[name] != row)
        raise ValueError(f"images {row} and {rows[ids[row]]} both have the id {ids[row]!r}; give each image its own.")


@dataclass(frozen=True)
class Chunk:
    """Some anchors, from number `first`: the heads of their lists, and their positives."""

    first: int
    ids: Int32[np.ndarray, "anchors depth"]
    scores: Float32[np.ndarray, "anchors depth"]
    positives: Positives
    positive_scores: Float32[np.ndarray, " pairs"] | None
    """One for each of `positives`; None where they are not asked for."""

    @property
    def has_positive(self) -> Bool[np.ndarray, " anchors"]:
        return np.diff(self.positives.offsets) > 0

    @property
    def lengths(self) -> Int64[np.ndarray, " anchors"]:
        return (self.ids >= 0).sum(axis=1)

    @property
    def pair_rows(self) -> Int64[np.ndarray, " pairs"]:
        """Which of the anchors each positive belongs to."""
        return np.repeat(np.arange(len(self.ids)), np.diff(self.positives.offsets))


@dataclass(frozen=True)
class Outgoing:
    """The lists of one direction, some at a time from anchor 0 on, and all that a format may want of them."""

    direction: Direction
    lists: Iterable[NegativeLists]
    anchors: Names
    candidates: Names
    positives: Positives
    depth: int
    """The most negatives of each anchor that are taken, from the head of its list."""
    scored: bool = False
    vectors: tuple[Float32[np.ndarray, "anchors D"], Float32[np.ndarray, "candidates D"]] | None = field(
        default=None, repr=False
    )
    """What the table was mined from: gives the scores of all positives, of which the table keeps the lowest."""

    def __post_init__(self) -> None:
        if self.scored and self.vectors is None and self.positives.most > 1:
            raise ValueError(
                f"of the up to {self.positives.most} positives of an image the table keeps the lowest score only; "
                "give --vectors IMAGES CAPTIONS, what it was mined from, for those of all."
            )

    def chunks(self) -> Iterator[Chunk]:
        first = 0
        for lists in self.lists:
            own = self.positives.rows(np.arange(first, first + len(lists)))
            scores = self._positive_scores(first, lists.positive_score, own) if self.scored else None
            yield Chunk(first, lists.negative_ids[:, : self.depth], lists.scores[:, : self.depth], own, scores)
            first += len(lists)

    @property
    def empty_chunk(self) -> Chunk:
        shape, scores = (0, self.depth), np.empty(0, np.float32) if self.scored else None
        own = self.positives.rows(np.empty(0, np.int64))
        return Chunk(0, np.empty(shape, np.int32), np.empty(shape, np.float32), own, scores)

    def _positive_scores(
        self, first: int, known: Float32[np.ndarray, " anchors"], own: Positives
    ) -> Float32[np.ndarray, " pairs"]:
        """Exact; refuses vectors that do not give the anchors' lowest scores again."""
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
    """How many rows (lines) are in the file, and how many anchors are not, since they lack what a row needs."""

    rows: int
    anchors_left_out: int = 0


def write_groups(path: Path, schema: pa.Schema, tables: Iterable[pa.Table]) -> int:
    """Write tables of one schema to a Parquet file, in row groups of about 64 MB; the count of rows."""
    rows = 0
    waiting: list[pa.Table] = []
    with pq.ParquetWriter(path, schema, compression="zstd", write_page_checksum=True) as writer:
        for table in tables:
            waiting.append(table)
            rows += len(table)
            if sum(one.nbytes for one in waiting) >= GROUP_BYTES:
                _write_group(writer, waiting)
                waiting = []
        if waiting:
            _write_group(writer, waiting)
    return rows


def _write_group(writer: pq.ParquetWriter, tables: Sequence[pa.Table]) -> None:
    group = pa.concat_tables(tables)
    writer.write_table(group, row_group_size=max(1, len(group)))
