"""Lists of negatives of one direction, as arrays and as Arrow columns."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from jaxtyping import Bool, Float32, Int32, Int64, UInt8


@dataclass(frozen=True, repr=False)
class NegativeLists:
    """Lists of one direction, one row per anchor, by falling score, then rising id; padded with -1 and NaN."""

    negative_ids: Int32[np.ndarray, "anchors h"]
    scores: Float32[np.ndarray, "anchors h"]
    positive_score: Float32[np.ndarray, " anchors"]
    """Score of the lowest-scoring positive; NaN if there is none."""
    sources: UInt8[np.ndarray, "anchors h"] | None = None
    """Fused tables only: bit m is set if member m lists the pair."""
    bound: Float32[np.ndarray, " anchors"] | None = None
    """An upper bound for every candidate that was not scored exactly; None if no search gave one."""

    def __len__(self) -> int:
        return len(self.negative_ids)

    def __repr__(self) -> str:
        return f"NegativeLists({len(self)} lists of {self.h})"

    def __getitem__(self, rows: slice | Int64[np.ndarray, " some"]) -> NegativeLists:
        """Select the lists of some anchors."""
        return replace(self, **{name: column[rows] for name, column in vars(self).items() if column is not None})

    @property
    def h(self) -> int:
        return self.negative_ids.shape[1]

    @property
    def lengths(self) -> Int64[np.ndarray, " anchors"]:
        """Number of negatives in each list."""
        return (self.negative_ids >= 0).sum(axis=1)

    def head(self, depth: int) -> NegativeLists:
        """Select the first `depth` negatives of each list."""
        columns = {"negative_ids": self.negative_ids, "scores": self.scores, "sources": self.sources}
        return replace(self, **{name: column[:, :depth] for name, column in columns.items() if column is not None})

    def keep(self, left: Bool[np.ndarray, "anchors h"]) -> NegativeLists:
        """Move the marked negatives to the front, and pad the rest."""
        left = left & (self.negative_ids >= 0)
        order = np.argsort(~left, axis=1, kind="stable")
        is_left = np.take_along_axis(left, order, axis=1)
        ids = np.where(is_left, np.take_along_axis(self.negative_ids, order, axis=1), np.int32(-1))
        scores = np.where(is_left, np.take_along_axis(self.scores, order, axis=1), np.float32(np.nan))
        return NegativeLists(ids, scores, self.positive_score)


def in_table_order(
    ids: Int32[np.ndarray, "anchors depth"], scores: Float32[np.ndarray, "anchors depth"]
) -> tuple[Int32[np.ndarray, "anchors depth"], Float32[np.ndarray, "anchors depth"]]:
    """Sort lists by falling score, then rising id; padding comes last."""
    order = np.lexsort((ids, -scores, ids < 0), axis=1)
    return np.take_along_axis(ids, order, axis=1), np.take_along_axis(scores, order, axis=1)


def to_arrow(lists: NegativeLists, first_anchor: int = 0) -> pa.Table:
    """Make a table's columns; anchors are numbered from `first_anchor`, and `bound` is added if there is one."""
    h = lists.h
    scores = pa.array(lists.scores.ravel(), mask=(lists.negative_ids.ravel() < 0) | np.isnan(lists.scores.ravel()))
    columns = {
        "anchor_id": pa.array(np.arange(first_anchor, first_anchor + len(lists), dtype=np.int32)),
        "negative_ids": pa.FixedSizeListArray.from_arrays(pa.array(lists.negative_ids.ravel()), h),
        "scores": pa.FixedSizeListArray.from_arrays(scores, h),
        "positive_score": pa.array(lists.positive_score),
    }
    if lists.sources is not None:
        columns["sources"] = pa.FixedSizeListArray.from_arrays(pa.array(lists.sources.ravel()), h)
    if lists.bound is not None:
        columns["bound"] = pa.array(lists.bound)
    return pa.table(columns)


def from_arrow(table: pa.Table) -> NegativeLists:
    """Read lists from the columns that `to_arrow` makes."""

    def matrix(column: str) -> np.ndarray:
        values = table.column(column).combine_chunks()
        return values.flatten().to_numpy(zero_copy_only=False).reshape(len(table), values.type.list_size)

    return NegativeLists(
        matrix("negative_ids").astype(np.int32, copy=False),
        matrix("scores").astype(np.float32, copy=False),
        table.column("positive_score").to_numpy(),
        matrix("sources") if "sources" in table.column_names else None,
        table.column("bound").to_numpy() if "bound" in table.column_names else None,
    )
