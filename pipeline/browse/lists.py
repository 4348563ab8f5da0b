"""The lists of a table without reading it whole: one anchor's, all with one candidate, and what to look at first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
SUSPECT = np.dtype([("suspicion", np.float32), ("image", np.int64), ("caption", np.int64), ("score", np.float32)])
MOST_SUSPECTS = 500
"""Enough for a person to judge."""
SHOWN, BINS, SCORES_BINNED = 12, 48, 200_000
"""Number of hubs and of confused anchors; bins of a histogram, and about how many scores it counts."""

_Group = TypeVar("_Group")


class ListFile:
    """One direction of a table and of its view, read by row groups; checksums are verified while reading."""

    def __init__(self, table: Path, direction: Direction, manifest: Mapping[str, Any], view: Path | None) -> None:
        self.direction = direction
        self._members = search_facts(manifest, direction).get("sources", ())
        self._path, self._view = table / f"{direction}.parquet", view and view / f"{direction}.parquet"
        with open_lists(self._path) as file:
            self._starts = _starts(file.group_rows)
            self.h: int = file.file.schema_arrow.field("scores").type.list_size
        self._find = _by_row(self._starts, self._read_group)
        if self._view is not None:
            self._judged_starts = _starts(judged_groups(self._view))
            self._find_judged = _by_row(self._judged_starts, partial(read_judged, self._view))
        self.listings = lru_cache(CACHED_LISTINGS)(self._find_listings)

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, anchor: int) -> AnchorList:
        lists, row = self._find(anchor)
        judged = None
        if self._view is not None:
            group, place = self._find_judged(anchor)
            judged = group[place : place + 1]
        return AnchorList(self.direction, anchor, lists[row : row + 1], judged, self._members)

    def groups(self) -> Iterator[tuple[int, NegativeLists, Judged | None]]:
        """Yield row groups: the first anchor, the lists, and the view's judgements."""
        for group, (start, stop) in enumerate(pairwise(self._starts)):
            yield start, self._read_group(group), self._read_judged(start, stop)

    def _read_group(self, group: int) -> NegativeLists:
        with open_lists(self._path) as file:
            rows = file.read_group(group)
        return numbered(self._path, rows, self._starts[group])

    def _read_judged(self, start: int, stop: int) -> Judged | None:
        if self._view is None:
            return None
        parts = [
            read_judged(self._view, group)[slice(max(start - first, 0), stop - first)]
            for group, (first, last) in enumerate(pairwise(self._judged_starts))
            if first < stop and last > start
        ]
        return Judged(*(np.concatenate([getattr(part, name) for part in parts]) for name in ("flags", "suspicion")))

    def _find_listings(self, candidate: int) -> np.ndarray:
        """Find the candidate's LISTINGs, ordered by place, then by anchor."""
        listings = [np.empty(0, LISTING)]
        with open_lists(self._path) as file:
            for group, start in enumerate(self._starts[:-1]):
                columns = file.read_group(group, ["negative_ids", "scores"]).columns
                ids, scores = (column.combine_chunks().flatten().to_numpy(zero_copy_only=False) for column in columns)
                at = np.flatnonzero(ids == candidate)
                listings.append(np.rec.fromarrays((at % self.h, start + at // self.h, scores[at]), dtype=LISTING))
        return np.sort(np.concatenate(listings), order=["place", "anchor"])


def _starts(counts: Sequence[int]) -> list[int]:
    """Return the first row of each row group, and the number of rows."""
    return [0, *np.cumsum(counts).tolist()]


def _by_row(starts: Sequence[int], read: Callable[[int], _Group]) -> Callable[[int], tuple[_Group, int]]:
    """Return a function that finds a row's group, cached, and its position there."""
    cached = lru_cache(CACHED_GROUPS)(read)

    def find(row: int) -> tuple[_Group, int]:
        group = int(np.searchsorted(starts, row, side="right")) - 1
        return cached(group), row - starts[group]

    return find


@dataclass(frozen=True)
class Survey:
    """What to look at first in one direction of a table."""

    hubs: list[tuple[int, int]]
    """Candidates that most lists contain, and the number of lists."""
    confused: list[tuple[int, float]]
    """Anchors whose hardest negative lies furthest above their lowest-scoring positive, and the gap."""
    suspects: np.ndarray
    """SUSPECTs, the most suspected first: by the view, or else by score, if above a positive."""
    histogram: dict[str, Any] | None
    """Fractions of the listed `negatives`, and of the lowest-scoring `positives`, in bins from `low` to `high`."""


def survey(lists: ListFile, candidates: int) -> Survey:
    """Read every list once, a row group at a time."""
    uses, gaps = np.zeros(candidates, np.int64), np.full(len(lists), np.nan, np.float32)
    suspects, scores, positives = np.empty(0, SUSPECT), [], []
    step = max(1, len(lists) * lists.h // SCORES_BINNED)
    for start, group, judged in lists.groups():
        real = group.negative_ids >= 0
        uses += np.bincount(group.negative_ids[real], minlength=candidates)
        gaps[start : start + len(group)] = group.scores[:, 0] - group.positive_score
        more = _suspects(start, group, judged, lists.direction)
        suspects = np.sort(np.concatenate([suspects, more]), order="suspicion")[-MOST_SUSPECTS:]
        scores.append(group.scores[real & np.isfinite(group.scores)][::step])
        positives.append(group.positive_score[np.isfinite(group.positive_score)])
    hubs = np.argsort(-uses, kind="stable")[:SHOWN]
    confused = np.argsort(-np.nan_to_num(gaps, nan=-np.inf), kind="stable")[:SHOWN]
    return Survey(
        [(int(row), int(uses[row])) for row in hubs if uses[row]],
        [(int(row), float(gaps[row])) for row in confused if gaps[row] >= 0],
        suspects[::-1],
        _histogram(np.concatenate(scores), np.concatenate(positives)),
    )


def merge_suspects(surveys: Sequence[Survey]) -> np.ndarray:
    """Merge the suspects of both directions: each pair once, the most suspected first."""
    suspects = np.concatenate([one.suspects for one in surveys])
    suspects = suspects[np.argsort(-suspects["suspicion"], kind="stable")]
    _, first = np.unique(suspects[["image", "caption"]], return_index=True)
    return suspects[np.sort(first)][:MOST_SUSPECTS]


def _suspects(start: int, group: NegativeLists, judged: Judged | None, direction: Direction) -> np.ndarray:
    suspicion, is_suspect = group.scores, group.scores >= group.positive_score[:, None]
    if judged is not None:
        suspicion, is_suspect = judged.suspicion, (judged.suspicion > 0) & judged.is_allowed
    rows, places = np.nonzero(is_suspect & (group.negative_ids >= 0))
    most = np.argsort(-suspicion[rows, places], kind="stable")[:MOST_SUSPECTS]
    rows, places = rows[most], places[most]
    pairs = [rows + start, group.negative_ids[rows, places]]
    columns = suspicion[rows, places], *(pairs if direction == "i2t" else pairs[::-1]), group.scores[rows, places]
    return np.rec.fromarrays(columns, dtype=SUSPECT)


def _histogram(scores: np.ndarray, positives: np.ndarray) -> dict[str, Any] | None:
    if not len(scores):
        return None
    both = np.concatenate([scores, positives])
    low, high = float(both.min()), float(both.max())
    edges = np.linspace(low, high if high > low else low + 1, BINS + 1)
    bins: dict[str, Any] = {"low": low, "high": high}
    for name, values in (("negatives", scores), ("positives", positives)):
        counts = np.histogram(values, edges)[0]
        bins[name] = (counts / max(1, counts.sum())).tolist()
    return bins
