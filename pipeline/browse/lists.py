"""One anchor's list of a table, and every list that a candidate is in, without reading the whole table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Float32, Int64

from aoq.pipeline.search.lists import NegativeLists
from aoq.pipeline.search.problem import Direction
from aoq.pipeline.tables.files import group_rows, numbered, open_lists, readable_errors
from aoq.pipeline.tables.inspection import AnchorList, members_of
from aoq.pipeline.tables.screens.view import judged_groups, read_judged

KEPT_GROUPS = 4
KEPT_LISTINGS = 16


@dataclass(frozen=True)
class Listings:
    """Where a candidate is a negative: by place, then by anchor."""

    anchors: Int64[np.ndarray, " lists"]
    places: Int64[np.ndarray, " lists"]
    scores: Float32[np.ndarray, " lists"]

    def __len__(self) -> int:
        return len(self.anchors)


class ListFile:
    """One direction of a table and of its view, read by row groups; every page that is read is checked."""

    def __init__(self, table: Path, direction: Direction, manifest: Mapping[str, Any], view: Path | None) -> None:
        self.direction = direction
        self._members = members_of(manifest, direction)
        self._path = table / f"{direction}.parquet"
        with open_lists(self._path) as file:
            self._ends = np.cumsum(group_rows(file))
            self.h: int = file.schema_arrow.field("scores").type.list_size
        self._read_group = lru_cache(KEPT_GROUPS)(self._lists)
        self._read_judged = None
        if view is not None:
            judged = view / f"{direction}.parquet"
            self._judged_ends = np.cumsum(judged_groups(judged))
            self._read_judged = lru_cache(KEPT_GROUPS)(partial(read_judged, judged))
        self.listings = lru_cache(KEPT_LISTINGS)(self._find_listings)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, anchor: int) -> AnchorList:
        group, row = _place(self._ends, anchor)
        lists = self._read_group(group)
        flags, suspicion = np.zeros(self.h, np.uint16), np.zeros(self.h, np.float32)
        if self._read_judged is not None:
            group, place = _place(self._judged_ends, anchor)
            judged = self._read_judged(group)
            flags, suspicion = judged.flags[place], judged.suspicion[place]
        return AnchorList(
            self.direction,
            anchor,
            lists.negative_ids[row],
            lists.scores[row],
            float(lists.positive_score[row]),
            flags,
            suspicion,
            None if lists.sources is None else lists.sources[row],
            self._members,
        )

    def _lists(self, group: int) -> NegativeLists:
        with open_lists(self._path) as file, readable_errors(self._path):
            rows = file.read_row_group(group)
        return numbered(self._path, rows, int(self._ends[group]) - len(rows))

    def _find_listings(self, candidate: int) -> Listings:
        """Ids are read group by group, and scores only of groups where the candidate is."""
        found = []
        with open_lists(self._path) as file, readable_errors(self._path):
            for group, start in enumerate([0, *self._ends[:-1].tolist()]):
                ids = _values(file, group, "negative_ids")
                at = np.flatnonzero(ids == candidate)
                if len(at):
                    scores = _values(file, group, "scores").astype(np.float32, copy=False)
                    found.append((start + at // self.h, at % self.h, scores[at]))
        empty = (np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.float32))
        anchors, places, scores = (np.concatenate(parts) for parts in zip(empty, *found, strict=True))
        order = np.lexsort((anchors, places))
        return Listings(anchors[order], places[order], scores[order])


def _place(ends: Int64[np.ndarray, " groups"], row: int) -> tuple[int, int]:
    """The row group that a row is in, and which of its rows it is."""
    group = int(np.searchsorted(ends, row, side="right"))
    return group, row - (int(ends[group - 1]) if group else 0)


def _values(file: pq.ParquetFile, group: int, column: str) -> np.ndarray:
    """All lists of a row group one after the other; null is NaN."""
    lists: pa.FixedSizeListArray = file.read_row_group(group, [column]).column(0).combine_chunks()
    values: np.ndarray = lists.flatten().to_numpy(zero_copy_only=False)
    return values
