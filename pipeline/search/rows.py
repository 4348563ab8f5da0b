"""A step of a search whose rows are cut into units of any size: lists, and so tables, do not depend on the cut."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Generic, TypeVar, overload

import pyarrow as pa

from aoq.pipeline.search.problem import blocks
from aoq.pipeline.search.store import Range, Store
from aoq.pipeline.search.units import Unit, unit_name

Job = TypeVar("Job")
Rows = tuple[int, int]

PATIENCE = 90.0
"""Seconds after which a shared folder surely shows what another node wrote."""


@dataclass(frozen=True)
class RowStep(Sequence[Unit[Job]], Generic[Job]):
    """Rows 0 to `row_count`, in units of at most `most`; `run(start, stop, device, job, store)` makes a table a kind.

    As a sequence these are the units of `most` rows. A device is "cpu" or torch's name of a GPU.
    """

    kinds: tuple[str, ...]
    """Kinds of the tables of each unit (`unit_name`); the last is written last, and marks finished rows."""
    row_count: int
    most: int
    run: Callable[[int, int, str, Job, Store], Sequence[pa.Table]]

    def __len__(self) -> int:
        return len(blocks(self.row_count, self.most))

    @overload
    def __getitem__(self, number: int) -> Unit[Job]: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[Unit[Job]]: ...
    def __getitem__(self, number: int | slice) -> Unit[Job] | Sequence[Unit[Job]]:
        rows = blocks(self.row_count, self.most)[number]
        return [self.unit(*each) for each in rows] if isinstance(rows, list) else self.unit(*rows)

    def unit(self, start: int, stop: int, device: str = "cpu") -> Unit[Job]:
        """Cut out a unit."""
        return Unit(tuple(unit_name(kind, start, stop) for kind in self.kinds), partial(self.run, start, stop, device))

    def missing(self, store: Store) -> list[Rows]:
        """Find the stretches of rows that are not finished, whatever the sizes of those that are."""
        edges = [(0, 0), *self._finished(store), (self.row_count, self.row_count)]
        return [(stop, start) for (_, stop), (start, _) in pairwise(edges) if stop < start]

    def left(self, store: Store) -> list[Unit[Job]]:
        """Cut the missing rows into units of `most` rows."""
        return [
            self.unit(first + start, first + stop)
            for first, last in self.missing(store)
            for start, stop in blocks(last - first, self.most)
        ]

    def names(self, store: Store, kind: str) -> list[str]:
        """Name the tables of a kind, in the order of their rows; all must be there."""
        return [unit_name(kind, *rows) for rows in all_rows(store, self.kinds[-1], self.row_count)]

    def _finished(self, store: Store) -> list[Rows]:
        ranges = finished_rows(store, self.kinds[-1])
        return [rows for rows in ranges if all(store.has(unit_name(kind, *rows)) for kind in self.kinds)]


def finished_rows(store: Store, kind: str) -> list[Rows]:
    """Ranges of rows of the tables of a kind that do not overlap, in order.

    Where tables overlap, one is of a process that was taken for lost; either holds the same.
    """
    found: list[Rows] = []
    for start, stop in _ranges(store, kind):
        if not found or start >= found[-1][1]:
            found.append((start, stop))
    return found


def all_rows(store: Store, kind: str, count: int) -> list[Rows]:
    """Ranges of rows of the tables of a kind, which must be all of `count`; a shared folder may show files late."""
    until = time.monotonic() + PATIENCE
    while (found := _tiling(_ranges(store, kind), count)) is None:
        if time.monotonic() > until:
            raise ValueError(
                f"tables {kind!r} of some of {count} rows are not there, though they were written; do all nodes see "
                "one folder? Run again: what is there is kept."
            )
        time.sleep(1)
    return found


def _ranges(store: Store, kind: str) -> list[Rows]:
    edges = [name.removeprefix(f"{kind}-").split("-") for name in store.names(f"{kind}-")]
    return [(int(start), int(stop)) for start, stop in edges]


def _tiling(ranges: list[Rows], count: int) -> list[Rows] | None:
    """Choose ranges, which are sorted, that follow one another from row 0 to `count`."""
    reached: dict[int, int] = {0: 0}
    for start, stop in ranges:
        if start in reached:
            reached.setdefault(stop, start)
    if count not in reached:
        return None
    found: list[Rows] = []
    while count > 0:
        found.append((reached[count], count))
        count = reached[count]
    return found[::-1]


def read_all(store: Store, kind: str, count: int, within: Range | None = None) -> pa.Table:
    """Read the tables of a kind, of `count` rows, one after the other."""
    return pa.concat_tables(store.read(unit_name(kind, *rows), within) for rows in all_rows(store, kind, count))


def left_of(step: Sequence[Unit[Any]], store: Store) -> Sequence[Unit[Any]]:
    """The units of a step that are still to be looked at."""
    return step.left(store) if isinstance(step, RowStep) else step


def outputs_of(step: Sequence[Unit[Any]], store: Store) -> list[str]:
    """Names of a finished step's tables, in the order of their rows."""
    if isinstance(step, RowStep):
        return [name for kind in step.kinds for name in step.names(store, kind)]
    return [name for unit in step for name in unit.outputs]
