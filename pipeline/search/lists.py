"""The negatives of every anchor of one direction, as arrays and as Arrow columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from jaxtyping import Float32, Int32, UInt8

from aoq.pipeline.search.exact import lowest_positives
from aoq.pipeline.search.problem import Side
from aoq.pipeline.search.proposals import Heads


@dataclass(frozen=True)
class NegativeLists:
    """The lists of one direction, one row an anchor; padded with -1 and NaN."""

    negative_ids: Int32[np.ndarray, "anchors h"]
    scores: Float32[np.ndarray, "anchors h"]
    positive_scores: Float32[np.ndarray, " anchors"]
    sources: UInt8[np.ndarray, "anchors h"] | None = None

    def __len__(self) -> int:
        return len(self.negative_ids)

    @property
    def h(self) -> int:
        return self.negative_ids.shape[1]


def to_arrow(lists: NegativeLists, first_anchor: int = 0) -> pa.Table:
    h = lists.h
    scores = pa.array(lists.scores.ravel(), mask=(lists.negative_ids.ravel() < 0) | np.isnan(lists.scores.ravel()))
    columns = {
        "anchor_id": pa.array(np.arange(first_anchor, first_anchor + len(lists), dtype=np.int32)),
        "negative_ids": pa.FixedSizeListArray.from_arrays(pa.array(lists.negative_ids.ravel()), h),
        "scores": pa.FixedSizeListArray.from_arrays(scores, h),
        "positive_score": pa.array(lists.positive_scores),
    }
    if lists.sources is not None:
        columns["sources"] = pa.FixedSizeListArray.from_arrays(pa.array(lists.sources.ravel()), h)
    return pa.table(columns)


def from_arrow(table: pa.Table) -> NegativeLists:
    def matrix(column: str) -> np.ndarray:
        values = table.column(column).combine_chunks()
        return values.flatten().to_numpy(zero_copy_only=False).reshape(len(table), values.type.list_size)

    return NegativeLists(
        matrix("negative_ids").astype(np.int32, copy=False),
        matrix("scores").astype(np.float32, copy=False),
        table.column("positive_score").to_numpy(),
        matrix("sources") if "sources" in table.column_names else None,
    )


def lists_table(side: Side, found: Heads, first_anchor: int) -> pa.Table:
    """Rows of the table, and of each the `bound`: no candidate without an exact score of its own can score more."""
    lists = to_arrow(NegativeLists(found.ids, found.scores, lowest_positives(side)), first_anchor)
    return lists.append_column("bound", pa.array(found.bound))
