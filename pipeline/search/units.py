"""Units of work, how to run them, and the search backends that plan them."""

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
"""Default fraction of the true lists that an approximate search must find."""

Progress = Callable[[int, int], None]
"""Called with the number of finished units and the total."""


@dataclass(frozen=True)
class Unit(Generic[Job]):
    """`run(job, store)` makes the tables `outputs`; they are identical on every run and machine."""

    outputs: tuple[str, ...]
    run: Callable[[Job, Store], Sequence[pa.Table]]

    def do(self, job: Job, store: Store) -> None:
        """Write the outputs unless the store has all of them."""
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
"""The units of a step depend on earlier steps, but not on each other."""


Runner = Callable[[Steps[Job], Job, Store, Progress], None]


def run_in_process(steps: Steps[Job], job: Job, store: Store, progress: Progress) -> None:
    """Run the units one after another, each with all threads."""
    total, done = sum(map(len, steps)), 0
    for units in steps:
        for unit in units:
            unit.do(job, store)
            done += 1
            progress(done, total)


def run_in_order(
    units: Sequence[Unit[Job]], job: Job, store: Store, run: Runner[Job], take: Callable[[int, pa.Table], None]
) -> None:
    """Run units of one table each, and call `take` with each number and table, in order; the store then drops it.

    A table is taken as soon as all before it were taken. If `take` fails, the next run makes the table again.
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
    while waiting:  # a shared folder may show files of other nodes late
        take_next()


def exact(store: Store, direction: Direction) -> Mapping[str, Any]:
    return {"guarantee": "exact"}


def list_bytes(problem: Problem) -> float:
    """Bytes of all lists as they are written."""
    sizes = (problem.size(direction) for direction in problem.directions)
    return float(sum(size.anchors * (8 * size.h + 12) for size in sizes))


def no_wider_search(problem: Problem, store: Store, short: Sequence[Direction]) -> None:
    """Return None: this search cannot be widened."""


def never(problem: Problem) -> bool:
    return False


@dataclass(frozen=True)
class Backend:
    """A search backend: it reads and writes only tables, so it runs in memory, in a folder or on a cluster."""

    name: str
    about: str
    plan: Callable[[Problem], Steps[Problem]]
    guarantee: Callable[[Store, Direction], Mapping[str, Any]] = exact
    """Guarantee of a direction's lists, read once all units are done."""
    costs: Callable[[Problem], Mapping[str, float]] | None = None
    """Floating-point operations of each step by name, in order; None if unknown."""
    work_bytes: Callable[[Problem], float] = list_bytes
    """Bytes that the units write during the search, not counted in `problem.memory`."""
    widened: Callable[[Problem, Store, Sequence[Direction]], Backend | None] = no_wider_search
    """Return a backend that searches directions whose recall fell short more widely, or None."""
    is_small: Callable[[Problem], bool] = never
    """Return whether a job takes seconds, so that its tables may stay in memory."""

    @property
    def is_exact(self) -> bool:
        return self.guarantee is exact
