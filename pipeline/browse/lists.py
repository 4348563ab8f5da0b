"""The list of one anchor, and all lists with one candidate, without reading the whole table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from aoq.pipeline.search.lists import NegativeLists
from aoq.pipeline.search.problem import Direction
from aoq.pipeline.tables.files import numbered, open_lists, search_facts
from aoq.pipeline.tables.inspection import AnchorList
from aoq.pipeline.tables.screens.view import Judged, judged_groups, read_judged

CACHED_GROUPS, CACHED_LISTINGS = 4, 16
LISTING = np.dtype([("place", np.int64), ("anchor", np.int64), ("score", np.float32)])
"""Where a candidate is listed as a negative."""

Group = TypeVar("Group")


class ListFile:
    """One direction of a table and of its view, read by row groups; checksums are verified while reading."""

    def __init__(self, table: Path, direction: Direction, manifest: Mapping[str, Any], view: Path | None) -> None:
        self.direction = direction
        self._members = search_facts(manifest, direction).get("sources", ())
        self._path = table / f"{direction}.parquet"
        with open_lists(self._path) as file:
            self._starts = _starts(file.group_rows)
            self.h: int = file.file.schema_arrow.field("scores").type.list_size
        self._find = _by_row(self._starts, self._read_group)
        self._view = None if view is None else view / f"{direction}.parquet"
        self._find_judged = None
        if self._view is not None:
            self._judged_starts = _starts(judged_groups(self._view))
            self._find_judged = _by_row(self._judged_starts, partial(read_judged, self._view))
        self.listings = lru_cache(CACHED_LISTINGS)(self._find_listings)

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, anchor: int) -> AnchorList:
        lists, row = self._find(anchor)
        judged = None
        if self._find_judged is not None:
            found, place = self._find_judged(anchor)
            judged = found[place : place + 1]
        return AnchorList(self.direction, anchor, lists[row : row + 1], judged, self._members)

    def groups(self) -> Iterator[tuple[int, NegativeLists, Judged | None]]:
        """Yield row groups: the first anchor, the lists, and the view's judgements."""
        for group, (start, stop) in enumerate(pairwise(self._starts)):
            yield start, self._read_group(group), self._judged(start, stop)

    def _judged(self, start: int, stop: int) -> Judged | None:
        if self._view is None:
            return None
        parts = [
            read_judged(self._view, group)[slice(max(start - first, 0), stop - first)]
            for group, (first, last) in enumerate(pairwise(self._judged_starts))
            if first < stop and last > start
        ]
        return Judged(*(np.concatenate([getattr(part, name) for part in parts]) for name in ("flags", "suspicion")))

    def _read_group(self, group: int) -> NegativeLists:
        with open_lists(self._path) as file:
            rows = file.read_group(group)
        return numbered(self._path, rows, self._starts[group])

    def _find_listings(self, candidate: int) -> np.ndarray:
        """Find the candidate's LISTINGs, ordered by place, then by anchor."""
        found = [np.empty(0, LISTING)]
        with open_lists(self._path) as file:
            for group, start in enumerate(self._starts[:-1]):
                columns = file.read_group(group, ["negative_ids", "scores"]).columns
                ids, scores = (column.combine_chunks().flatten().to_numpy(zero_copy_only=False) for column in columns)
                at = np.flatnonzero(ids == candidate)
                found.append(np.rec.fromarrays((at % self.h, start + at // self.h, scores[at]), dtype=LISTING))
        return np.sort(np.concatenate(found), order=["place", "anchor"])


def _starts(counts: Sequence[int]) -> list[int]:
    """Return the first row of each row group, and the number of rows."""
    return [0, *np.cumsum(counts).tolist()]


def _by_row(starts: Sequence[int], read: Callable[[int], Group]) -> Callable[[int], tuple[Group, int]]:
    """Return a function that finds a row's group, cached, and its position there."""
    cached = lru_cache(CACHED_GROUPS)(read)

    def find(row: int) -> tuple[Group, int]:
        group = int(np.searchsorted(starts, row, side="right")) - 1
        return cached(group), row - starts[group]

    return find
