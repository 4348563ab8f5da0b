"""The registry of search backends, and the search itself. All exact backends find identical lists."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import pyarrow as pa

from aoq.pipeline.search.exact import ONE_PASS
from aoq.pipeline.search.faiss_flat import FAISS_FLAT
from aoq.pipeline.search.faiss_index import FAISS_PREFIX, RECIPES, Indexed
from aoq.pipeline.search.lists import NegativeLists, from_arrow
from aoq.pipeline.search.problem import Direction, Problem
from aoq.pipeline.search.units import RECALL_FLOOR, Backend, MemoryStore, Progress, Runner, Store, run_in_process

logger = logging.getLogger(__name__)
Lists = TypeVar("Lists")

BACKENDS: dict[str, Backend] = {
    "onepass": ONE_PASS,
    "faiss-flat": FAISS_FLAT,
    **{name: Indexed(name, RECALL_FLOOR, None).backend() for name in (*RECIPES, f"{FAISS_PREFIX}FACTORY")},
}


def choose_backend(search: str, recall_floor: float = RECALL_FLOOR, indexes: Path | None = None) -> Backend:
    """Return the backend of this name; `auto` is the exact search in one pass.

    An approximate one aims at a recall of `recall_floor` and keeps its indexes below the folder `indexes`.
    """
    if search == "auto":
        return ONE_PASS
    if search in RECIPES or (search.startswith(FAISS_PREFIX) and search != FAISS_PREFIX):
        return Indexed(search, recall_floor, indexes).backend()
    if search not in BACKENDS:
        *names, last = ["auto", *BACKENDS]
        raise ValueError(f"there is no search {search!r}; known are {', '.join(names)} and {last}.")
    return BACKENDS[search]


@dataclass(frozen=True)
class SearchResult(Generic[Lists]):
    """The lists of each searched direction, and their guarantees."""

    search: str
    lists: Mapping[Direction, Lists]
    guarantees: Mapping[Direction, Mapping[str, Any]]
    """`guarantee`: exact or approximate; approximate lists have a `recall`, measured on `recall_anchors` anchors."""


def run_search(
    problem: Problem,
    search: str | Backend,
    store: Store,
    *,
    recall_floor: float = RECALL_FLOOR,
    run: Runner[Problem] = run_in_process,
    progress: Progress = lambda done, total: None,
) -> SearchResult[Iterator[pa.Table]]:
    """Search all directions of a problem; units that the store already has are reused.

    The lists are tables (`lists_table`), in the order of anchors. Approximate lists whose recall is below
    `recall_floor` are searched more widely if possible, and refused if they still fall short.
    """
    backend = choose_backend(search, recall_floor) if isinstance(search, str) else search
    while True:
        steps = backend.plan(problem)
        run(steps, problem, store, progress)
        guarantees = {direction: backend.guarantee(store, direction) for direction in problem.directions}
        short = [direction for direction, each in guarantees.items() if each.get("recall", 1.0) < recall_floor]
        wider = backend.widened(problem, store, short) if short else None
        if wider is None:
            break
        for direction in short:
            recall = guarantees[direction]["recall"]
            logger.info("found %.2f%% of the %s lists, below the floor; searching more widely", 100 * recall, direction)
        backend = wider
    for direction in short:
        raise ValueError(
            f"{backend.name} finds {guarantees[direction]['recall']:.1%} of the {direction} lists, but the recall "
            f"floor is {recall_floor:.1%}; search more widely (nprobe, efSearch) or exactly, or lower the floor "
            "(mining.recall_floor, --recall-floor)."
        )
    outputs = [name for step in steps for unit in step for name in unit.outputs]
    lists = {d: map(store.read, [name for name in outputs if name.startswith(f"{d}-")]) for d in problem.directions}
    return SearchResult(backend.name, lists, guarantees)


def search_problem(
    problem: Problem, *, search: str | Backend = "auto", recall_floor: float = RECALL_FLOOR
) -> SearchResult[NegativeLists]:
    """Find the lists that `aoq.pipeline.mining.mine` would write, without writing a file.

    Intermediate results stay in memory too: in the one pass, 8 bytes for each of up to `h_images` candidates that a
    caption keeps per block of images.
    """
    result = run_search(problem, search, MemoryStore(), recall_floor=recall_floor)
    lists = {direction: from_arrow(pa.concat_tables(tables)) for direction, tables in result.lists.items()}
    return SearchResult(result.search, lists, result.guarantees)
