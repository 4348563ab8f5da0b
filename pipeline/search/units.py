"""Units of work, how they are run, and the backends that plan a search in them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import pyarrow as pa

from aoq.pipeline.search.problem import Direction, Problem
from aoq.pipeline.search.store import Store

Job = TypeVar("Job")
RECALL_FLOOR = 0.95
"""Fraction of the true lists that an approximate search must find, if nobody says otherwise."""

Progress = Callable[[int, int], None]
"""Called with the number of finished units and the total."""


@dataclass(frozen=True)
class Unit(Generic[Job]):
    """`run(job, store)` makes the tables `outputs`, identical on every run and machine."""

    outputs: tuple[str, ...]
    run: Callable[[Job, Store], Sequence[pa.Table]]

    def do(self, job: Job, store: Store) -> None:
        """Write the outputs, unless all are there."""
        if all(store.has(name) for name in self.outputs):
            return
        for name, table in zip(self.outputs, self.run(job, store), strict=True):
            store.write(name, table)


def unit_name(kind: str, start: int, stop: int) -> str:
    """Name a table of the rows from `start` to before `stop`; names sort as rows do.

    The lists of a direction (`lists_table`) are of the kind "i2t" or "t2i".
    """
    return f"{kind}-{start:09d}-{stop:09d}"


Steps = Sequence[Sequence[Unit[Job]]]
"""The units of one step need those of the steps before it, but not each other."""


Runner = Callable[[Steps[Job], Job, Store, Progress], None]


def run_in_process(steps: Steps[Job], job: Job, store: Store, progress: Progress) -> None:
    """Do one unit after the other, each with all threads."""
    total, done = sum(map(len, steps)), 0
    for units in steps:
        for unit in units:
            unit.do(job, store)
            done += 1
            progress(done, total)


def run_in_order(
    units: Sequence[Unit[Job]], job: Job, store: Store, run: Runner[Job], take: Callable[[int, pa.Table], None]
) -> None:
    """Do units of one table each. `take` gets each number and table, in order, and the store drops the table.

    A table is taken once it and all before it are there. If taking it fails, the next run makes it again.
    """
    waiting = deque(enumerate(units))

    def take_next() -> None:
        number, unit = waiting.popleft()
        (name,) = unit.outputs
        try:
            take(number, store.read(name))
        finally:
            store.drop(name)

    def take_ready(*_: int) -> None:
        while waiting and store.has(waiting[0][1].outputs[0]):
            take_next()

    take_ready()
    if missing := [unit for _, unit in waiting if not store.has(unit.outputs[0])]:
        run([missing], job, store, take_ready)
    while waiting:  # a folder shared by nodes may show files late
        take_next()


def exact(store: Store, direction: Direction) -> Mapping[str, Any]:
    return {"guarantee": "exact"}


def list_bytes(problem: Problem) -> float:
    """Bytes of all lists as units write them."""
    sizes = (problem.size(direction) for direction in problem.directions)
    return float(sum(size.anchors * (8 * size.h + 12) for size in sizes))


def as_it_is(problem: Problem, store: Store, short: Sequence[Direction]) -> None:
    """There is nothing wider."""


def never(problem: Problem) -> bool:
    return False


@dataclass(frozen=True)
class Backend:
    """A search backend.

    It reads and writes nothing but its units' tables, so it runs in memory, in a folder and on a cluster alike.
    """

    name: str
    about: str
    """One line of help for choosing a backend."""
    plan: Callable[[Problem], Steps[Problem]]
    guarantee: Callable[[Store, Direction], Mapping[str, Any]] = exact
    """Guarantee of a direction's lists, once all units are done."""
    costs: Callable[[Problem], Mapping[str, float]] | None = None
    """Floating-point operations of each step, by the step's name, in order; None if unknown."""
    work_bytes: Callable[[Problem], float] = list_bytes
    """Bytes that the units write during the search; beyond these and the vectors it may use `problem.memory` bytes."""

    widened: Callable[[Problem, Store, Sequence[Direction]], Backend | None] = as_it_is
    """The backend that searches directions whose guarantee fell short again, more widely; None if there is none."""
    is_small: Callable[[Problem], bool] = never
    """Whether a job takes seconds, so that its tables need not pass through files."""

    @property
    def is_exact(self) -> bool:
        return self.guarantee is exact
