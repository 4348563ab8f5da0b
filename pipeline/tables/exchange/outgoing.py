"""One direction of a table to be exported: the ids, texts or pictures of its rows, and its lists as rows of a table."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
from jaxtyping import Bool, Float32

from aoq.pipeline.data.images import MOST_BYTES
from aoq.pipeline.reading import read_file
from aoq.pipeline.search.lists import NegativeLists
from aoq.pipeline.search.positives import Positives
from aoq.pipeline.search.problem import Direction
from aoq.pipeline.search.scores import exact_scores

BLOCK_ANCHORS = 256
"""Anchors processed together: as triplets with 5 positives and 300 negatives they are 384,000 rows."""
ENTRY_DTYPE = np.dtype([("row", np.int32), ("score", np.float32), ("label", np.int64)])
"""A row of either side, -1 for padding, with its score; the label of positives is 1."""
Part = Literal["positives", "negatives", "documents"]
ENDINGS = (".jpg", ".jpeg", ".png", ".gif", ".bmp", ".tiff", ".webp")
"""Endings by which sentence-transformers takes the path of a file for an image."""
PICTURE = pa.struct({"bytes": pa.binary(), "path": pa.string()})
"""Type in which `datasets` stores an image: its file's content, or its path."""


@dataclass(frozen=True)
class Names:
    """The id of each row of one side, and its text or picture."""

    ids: Sequence[str]
    values: Sequence[str] = ()
    """Texts, or the absolute paths of pictures; empty if a format has only ids."""
    are_pictures: bool = False
    noun: str = "caption"
    """Name of a row in tables and columns: image, caption, or item of one set."""
    packed: bool = False
    """True if pictures are written as the content of their files, else as their paths."""

    # 64-bit offsets: the values taken from these may exceed 2 GB.
    @cached_property
    def id_column(self) -> pa.Array:
        return pa.array(self.ids, pa.large_string())

    @cached_property
    def value_column(self) -> pa.Array:
        return pa.array(self.values, pa.large_string())

    def shown(self, rows: Sequence[int]) -> pa.Array:
        """Take texts, or pictures in a column that `datasets` decodes."""
        if not self.are_pictures:
            return self.value_column.take(pa.array(rows))
        files = [Path(self.values[row]) for row in rows]
        packed = ({"bytes": read_file(file, MOST_BYTES), "path": file.name} for file in files)
        return pa.array(packed if self.packed else ({"bytes": None, "path": str(file)} for file in files), PICTURE)


@dataclass(frozen=True)
class ExportRows:
    """Rows of an export: one anchor each, its positives, and its negatives by rank, all of ENTRY_DTYPE."""

    anchors: np.ndarray
    positives: np.ndarray
    negatives: np.ndarray

    def __getitem__(self, rows: np.ndarray) -> ExportRows:
        return ExportRows(self.anchors[rows], self.positives[rows], self.negatives[rows])

    @property
    def documents(self) -> np.ndarray:
        return np.concatenate([self.positives, self.negatives], axis=1)

    def one_each(self, parts: Sequence[Part], *, full: bool) -> ExportRows:
        """Make a row for each positive, then each negative, or each document, of anchors that have both.

        Documents need only a positive. With `full`, all places have a negative.
        """
        needed = [self.positives, *([] if "documents" in parts else [self.negatives])]
        rows = self[np.logical_and.reduce([np.any(is_listed(part), axis=1) for part in needed])]
        for part in parts:
            entries = getattr(rows, part)
            row, place = np.nonzero(is_listed(entries))
            rows, single = rows[row], entries[row, place][:, None]
            if part == "documents":
                rows = replace(rows, positives=single, negatives=single[:, :0])
            else:
                rows = replace(rows, **{part: single})
        return rows[is_listed(rows.negatives[:, -1])] if full else rows


def is_listed(entries: np.ndarray) -> Bool[np.ndarray, "*entries"]:
    return np.asarray(entries["row"] >= 0)


@dataclass(frozen=True)
class Outgoing:
    """The lists of one direction, in blocks from anchor 0 on, and everything that a format may need about them."""

    direction: Direction
    lists: Iterable[NegativeLists]
    anchors: Names
    candidates: Names
    positives: Positives
    depth: int
    """Most negatives taken from the head of each anchor's list."""
    scored: bool
    vectors: tuple[Float32[np.ndarray, "anchors D"], Float32[np.ndarray, "candidates D"]] | None
    """Vectors from which the table was mined: they give all positives' scores, of which the table keeps the lowest."""
    other: Outgoing | None = None
    """The other direction, for a format whose rows have both."""

    def __post_init__(self) -> None:
        if self.scored and self.vectors is None and self.positives.most > 1:
            raise ValueError(
                f"an anchor has up to {self.positives.most} positives, but the table keeps only the lowest score of "
                "each anchor's; give --vectors IMAGES CAPTIONS, which it was mined from, to score them all."
            )

    def rows(self) -> Iterator[ExportRows]:
        """Iterate over blocks of anchors, one row for each anchor."""
        first = 0
        for lists in self.lists:
            anchors, head = np.arange(first, first + len(lists)), lists.head(self.depth)
            own = self.positives.rows(anchors)
            is_own = np.arange(own.most) < np.diff(own.offsets)[:, None]
            positives = _entries(np.full(is_own.shape, -1))
            scores = self._score_positives(first, lists.positive_score, own) if self.scored else np.nan
            positives[is_own] = _entries(own.ids, scores, label=1)
            yield ExportRows(_entries(anchors[:, None]), positives, _entries(head.negative_ids, head.scores))
            first += len(lists)

    def _score_positives(
        self, first: int, lowest: Float32[np.ndarray, " anchors"], own: Positives
    ) -> Float32[np.ndarray, " pairs"]:
        """Score positives exactly; refuse vectors that do not reproduce the anchors' lowest scores."""
        has_positive = np.diff(own.offsets) > 0
        if self.vectors is None:
            if np.isnan(lowest[has_positive]).any():
                raise ValueError(
                    "the table has no scores of some positives, as one fused by ranks; leave out --scores, or choose "
                    "a format without them."
                )
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


def _entries(rows: np.ndarray, scores: np.ndarray | float = np.nan, *, label: int = 0) -> np.ndarray:
    entries = np.empty(rows.shape, ENTRY_DTYPE)
    entries["row"], entries["score"], entries["label"] = rows, scores, label
    return entries


def find_pictures(root: Path, ids: Sequence[str]) -> list[str]:
    """Find the absolute path of each image's file below `root`: ROOT/ID, or ROOT/ID with the ending of an image."""
    if not root.is_dir():
        raise ValueError(f"{root} is not a folder; give --image-root a folder whose files the image ids name.")
    base = os.path.abspath(root)
    if base.encode(errors="replace").decode() != base:
        raise ValueError(f"{root} has a name that is not UTF-8, which no trainer could read; rename the folder.")
    files = [_find_picture(base, name) for name in ids]
    if "" in files:
        first = ids[files.index("")]
        raise ValueError(
            f"{files.count('')} of {len(ids)} images have no file below {root}, the first is {first!r}; --image-root "
            f"needs the folder where the id of an image names its file, with or without an ending ({ENDINGS[0]}, …)."
        )
    if empty := next((path for path in files if not os.path.getsize(path)), None):
        raise ValueError(f"{empty} is not a picture (it is empty); replace it.")
    return files


def _find_picture(base: str, name: str) -> str:
    path = os.path.normpath(os.path.join(base, name))
    # Ids are data, and could be any path.
    if not path.startswith(os.path.join(base, "")) or "\0" in name:
        return ""
    endings = ("", *ENDINGS, *map(str.upper, ENDINGS))
    return next((path + ending for ending in endings if os.path.isfile(path + ending)), "")
