"""Run a search: its units into a store or into memory, by this process or by the workers of a Ray cluster."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import pyarrow as pa

from aoq.pipeline.engine import Engine
from aoq.pipeline.search.choosing import backend_of
from aoq.pipeline.search.lists import NegativeLists, from_arrow
from aoq.pipeline.search.problem import Direction, Problem
from aoq.pipeline.search.store import Folder, Memory, Store
from aoq.pipeline.search.units import RECALL_FLOOR, Backend, Progress, Steps, Unit

if TYPE_CHECKING:
    from aoq.pipeline.search.on_ray import Job as ClusterJob

logger = logging.getLogger(__name__)

Job = TypeVar("Job")
Lists = TypeVar("Lists")
Runner = Callable[[Steps[Job], Job, Store, Progress], None]


@dataclass(frozen=True)
class Found(Generic[Lists]):
    """The lists of every direction that was searched, and their guarantees."""

    search: str
    """The backend's name."""
    lists: Mapping[Direction, Lists]
    guarantees: Mapping[Direction, Mapping[str, Any]]
    """`guarantee`: exact or approximate; of approximate lists also `recall`, measured on `recall_anchors` anchors."""


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


def run_search(
    problem: Problem,
    search: str | Backend,
    store: Store,
    *,
    recall_floor: float = RECALL_FLOOR,
    run: Runner[Problem] = run_in_process,
    progress: Progress = lambda done, total: None,
) -> Found[Iterator[pa.Table]]:
    """Search all directions of a problem; units that are done in the store are kept.

    The lists are tables (`lists_table`), from the first anchor on. `search` is a backend or its name
    (`aoq.pipeline.search.backends`). Approximate lists are refused if fewer than `recall_floor` of the true ones are in
    them, though they were searched more widely where that can be.
    """
    backend = backend_of(problem, search, wanted=recall_floor) if isinstance(search, str) else search
    while True:
        steps = backend.plan(problem)
        run(steps, problem, store, progress)
        guarantees = {direction: backend.guarantee(store, direction) for direction in problem.directions}
        short = [direction for direction, said in guarantees.items() if said.get("recall", 1.0) < recall_floor]
        wider = backend.widened(problem, store, short) if short else None
        if wider is None:
            break
        for direction in short:
            found = guarantees[direction]["recall"]
            logger.info("found %.2f%% of the %s lists, below the floor; searching more widely", 100 * found, direction)
        backend = wider
    for direction in short:
        raise ValueError(
            f"{backend.name} finds {guarantees[direction]['recall']:.1%} of the {direction} lists, and "
            f"mining.recall_floor is {recall_floor:.1%}; let it search wider (nprobe, efSearch), lower the floor, or "
            "search exactly."
        )
    outputs = [name for step in steps for unit in step for name in unit.outputs]
    lists = {d: map(store.read, [name for name in outputs if name.startswith(f"{d}-")]) for d in problem.directions}
    return Found(backend.name, lists, guarantees)


def search_problem(
    problem: Problem, *, search: str | Backend = "auto", recall_floor: float = RECALL_FLOOR
) -> Found[NegativeLists]:
    """Find the lists that `aoq.pipeline.mining.mine` would write into a table, without writing a file.

    Intermediate results of the search are held in memory too: for the one pass, 12 bytes for each of the about
    `3 * h_images` pairs that a caption keeps.
    """
    found = run_search(problem, search, Memory(), recall_floor=recall_floor)
    lists = {direction: from_arrow(pa.concat_tables(tables)) for direction, tables in found.lists.items()}
    return Found(found.search, lists, found.guarantees)


def choose_runner(engine: Engine, ship: Callable[[Job, Folder], ClusterJob[Job]]) -> Runner[Job]:
    """Choose the runner of the units; `ship` turns their input into a job for the nodes of a cluster."""
    if engine.backend == "inprocess":
        return run_in_process
    from aoq.pipeline.search.on_ray import load_ray, run_on_ray

    load_ray()  # fails here, before anything is read, where Ray is missing
    return partial(run_on_ray, ship=ship, engine=engine)


def choose_search_runner(engine: Engine, fetched: Mapping[Path, str] | None = None) -> Runner[Problem]:
    """Choose the runner of a search; `fetched` names the addresses of cached files, which each node fetches."""
    from aoq.pipeline.search.on_ray import ship_problem

    return choose_runner(engine, partial(ship_problem, fetched=fetched or {}))
