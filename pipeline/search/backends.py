"""The registry of search backends, and the search itself. All exact backends find identical lists."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa

from aoq.pipeline.console import duration
from aoq.pipeline.search.exact import ONE_PASS
from aoq.pipeline.search.faiss_flat import FAISS_FLAT, has_faiss
from aoq.pipeline.search.faiss_index import FAISS_PREFIX, RECIPES, Indexed
from aoq.pipeline.search.lists import NegativeLists, from_arrow
from aoq.pipeline.search.problem import Direction, Problem
from aoq.pipeline.search.units import RECALL_FLOOR, Backend, MemoryStore, Progress, Runner, Store, run_in_process

logger = logging.getLogger(__name__)
Lists = TypeVar("Lists")

WORTH_MEASURING = 2e12
"""Multiplications in a job of ten seconds or more."""
_PIECE_ROWS = 2048, 8192
"""Least rows of a piece per side; a thirty-second of a larger side, up to four times as many."""
_LEAST_DEPTH = 4
"""Shorter lists of a piece would need far more second searches than those of the whole problem."""

BACKENDS: dict[str, Backend] = {
    "onepass": ONE_PASS,
    "faiss-flat": FAISS_FLAT,
    **{name: Indexed(name, RECALL_FLOOR, None).backend() for name in (*RECIPES, f"{FAISS_PREFIX}FACTORY")},
}


def fastest(problem: Problem) -> tuple[Backend, str]:
    """Choose the backend for `auto`, with the reason: large jobs take the one that is faster on a piece of the job."""
    products = len(problem.images) * len(problem.captions) * problem.images.shape[1]
    if products < WORTH_MEASURING or not has_faiss():
        return ONE_PASS, "a tile serves both directions"
    sides = [
        side[np.linspace(0, len(side) - 1, min(len(side), max(least, min(4 * least, len(side) // 32))), dtype=np.int64)]
        for side, least in zip((problem.images, problem.captions), _PIECE_ROWS, strict=True)
    ]
    piece, seconds = take_piece(problem, *sides), {}
    for backend in (ONE_PASS, FAISS_FLAT, ONE_PASS, FAISS_FLAT):  # the first run of each loads and compiles
        seconds[backend.name] = _forecast(backend, piece, problem)
    times = ", ".join(f"{name} {duration(total)}" for name, total in seconds.items())
    return BACKENDS[min(seconds, key=seconds.__getitem__)], f"judging by a piece of the problem, {times}"


def _forecast(backend: Backend, piece: Problem, problem: Problem) -> float:
    """Search the piece, and scale the time of each step by its operations to those of the problem."""
    assert backend.costs is not None
    store, total = MemoryStore(), 0.0
    costs = zip(backend.costs(problem).values(), backend.costs(piece).values(), strict=True)
    for units, (whole, part) in zip(backend.plan(piece), costs, strict=True):
        started = time.perf_counter()
        for unit in units:
            unit.do(piece, store)
        total += (time.perf_counter() - started) * whole / max(part, 1.0)
    return total


def take_piece(problem: Problem, images: np.ndarray, captions: np.ndarray) -> Problem:
    """Take a piece of the problem without its pairs, with depths reduced in proportion."""
    captions = images if problem.one_set else captions
    h_captions = -(-problem.h_captions * len(captions) // len(problem.captions))
    h_images = -(-problem.h_images * len(images) // len(problem.images))
    return replace(
        problem,
        images=images,
        known_norms=None,
        captions=captions,
        positives=np.empty((0, 2), np.int32),
        h_captions=min(max(h_captions, min(_LEAST_DEPTH, problem.h_captions)), len(captions) - problem.one_set),
        h_images=min(max(h_images, min(_LEAST_DEPTH, problem.h_images)), len(images)),
    )


def choose_backend(
    search: str, problem: Problem | None = None, recall_floor: float = RECALL_FLOOR, indexes: Path | None = None
) -> Backend:
    """Return the backend of this name; `auto` depends on the problem.

    An approximate one aims at a recall of `recall_floor` and keeps its indexes below the folder `indexes`.
    """
    if search == "auto":
        backend, why = (ONE_PASS, "") if problem is None else fastest(problem)
        logger.info("searching with %s: %s", backend.name, why)
        return backend
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
    backend = choose_backend(search, problem, recall_floor) if isinstance(search, str) else search
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
