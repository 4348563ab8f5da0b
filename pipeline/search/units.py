"""A search as units of work: each reads the vectors and the tables of earlier units, and writes its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import pyarrow as pa

from aoq.pipeline.search.problem import Problem
from aoq.pipeline.search.store import Store

Job = TypeVar("Job")


@dataclass(frozen=True)
class Unit(Generic[Job]):
    """`run(job, store)` makes the tables `outputs`, the same ones whoever runs it and however often."""

    outputs: tuple[str, ...]
    run: Callable[[Job, Store], Sequence[pa.Table]]

    def do(self, job: Job, store: Store) -> None:
        """Write the outputs, unless all are there."""
        if all(store.has(name) for name in self.outputs):
            return
        for name, table in zip(self.outputs, self.run(job, store), strict=True):
            store.write(name, table)


def unit_name(kind: str, start: int, stop: int) -> str:
    """Name what concerns the rows from `start` to before `stop`; names sort as rows do."""
    return f"{kind}-{start:09d}-{stop:09d}"


Steps = Sequence[Sequence[Unit[Problem]]]
"""The units of one step need those of the steps before it, but not each other."""
