"""Mine embeddings into a negative table, in units of work: every list anew, or only those that have drifted."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from jaxtyping import Float64, Int32

from aoq.pipeline.files import digest
from aoq.pipeline.search.backends import choose_backend, run_search
from aoq.pipeline.search.exact import exact_heads, lists_table, rescored
from aoq.pipeline.search.lists import from_arrow
from aoq.pipeline.search.problem import DIRECTIONS, READ_ROWS, Direction, Problem, blocks
from aoq.pipeline.search.units import (
    RECALL_FLOOR,
    Backend,
    Folder,
    MemoryStore,
    Progress,
    Runner,
    Steps,
    Store,
    Unit,
    run_in_process,
    unit_name,
)
from aoq.pipeline.tables.files import directions_of, read_lists, read_manifest
from aoq.pipeline.tables.statistics import common_by_depth
from aoq.pipeline.tables.writing import write_table


def mine(
    problem: Problem,
    *,
    search: str | Backend,
    provenance: Mapping[str, Any],
    work: Path,
    output: Path,
    of: str = "",
    recall_floor: float = RECALL_FLOOR,
    indexes: Path | None = None,
    run: Runner[Problem] = run_in_process,
    progress: Progress = lambda done, total: None,
) -> None:
    """Write the table to the folder `output`; finished units of the same search in `work` are reused.

    Units stay until whoever publishes the table deletes them, so a kill before then repeats no search. A small job has
    none. An approximate search keeps its indexes, as artefacts, below `indexes`; by default they stay in `work`.
    `search`, `recall_floor` and `run` are those of `aoq.pipeline.search.backends.run_search`. `provenance` (dataset
    fingerprint, teacher, ...) goes into every footer and the manifest. `of` identifies the problem if its vectors were
    hashed already.
    """
    provenance = {"sides": ["items"], **provenance} if problem.one_set else provenance
    if problem.directions != directions_of(provenance):
        raise ValueError("a table has lists of both directions; h_captions and h_images must be at least 1.")
    work.mkdir(parents=True, exist_ok=True)
    backend = choose_backend(search, problem, wanted=recall_floor, kept=indexes) if isinstance(search, str) else search
    store: Store = MemoryStore()
    if run is not run_in_process or not backend.is_small(problem):  # other processes need a folder
        store = Folder(work, digest([backend.name, provenance, of or problem.sha256]))
        store.clear_unfinished()
    result = run_search(problem, backend, store, recall_floor=recall_floor, run=run, progress=progress)
    lists = {
        direction: (
            {"h": problem.size(direction).h, "search": result.search, **result.guarantees[direction]},
            map(from_arrow, result.lists[direction]),
        )
        for direction in problem.directions
    }
    shutil.rmtree(output, ignore_errors=True)  # of an interrupted run
    write_table(output, provenance, lists, problem.positives)


def refresh(earlier: Path, below: float) -> Backend:
    """Search an anchor again only if less than the fraction `below` of its list's top half stays there.

    The other anchors keep their lists of the table `earlier`, with new scores and in their order. Kept lists have no
    certificate: no other candidate was scored.
    """
    return Backend("drifted", "drifted lists anew, exactly", partial(_steps, earlier, below), guarantee=_guarantee)


def _steps(earlier: Path, below: float, problem: Problem) -> Steps[Problem]:
    manifest, units = read_manifest(earlier), []
    for direction in DIRECTIONS:
        listed = read_lists(earlier, direction, manifest).negative_ids
        for start, stop in blocks(len(problem[direction].anchors), READ_ROWS):
            name = unit_name(direction, start, stop)
            search = partial(_search_drifted, listed[start:stop], below, direction, start)
            units.append(Unit((name, f"searched-{name}"), search))
    return [units]


def _search_drifted(
    listed: Int32[np.ndarray, "anchors h"],
    below: float,
    direction: Direction,
    start: int,
    problem: Problem,
    _: Store,
) -> list[pa.Table]:
    side = problem[direction].rows(np.arange(start, start + len(listed)))
    lists = rescored(side, listed)
    is_drifted = fraction_staying(listed[:, : side.h], lists.ids) < below
    rows = np.flatnonzero(is_drifted)
    if len(rows):
        lists.put(rows, exact_heads(side.rows(rows)))
    return [lists_table(side, lists, start), pa.table({"searched": is_drifted})]


def fraction_staying(
    lists: Int32[np.ndarray, "anchors h"], reordered: Int32[np.ndarray, "anchors h"]
) -> Float64[np.ndarray, " anchors"]:
    """Return the fraction of each list's top half that stays there when the list is reordered.

    >>> fraction_staying(np.array([[7, 3, 5, 1]], np.int32), np.array([[7, 5, 1, 3]], np.int32))
    array([0.5])
    """
    half = max(1, lists.shape[1] // 2)
    common = common_by_depth(lists[:, :half], reordered[:, :half])[:, -1]
    return common / np.maximum(1, (lists[:, :half] >= 0).sum(axis=1))


def _guarantee(store: Store, direction: Direction) -> dict[str, Any]:
    searched = [store.read(name)["searched"].to_numpy() for name in store.names(f"searched-{direction}-")]
    return {"guarantee": "refreshed", "searched_share": round(float(np.concatenate(searched).mean()), 6)}
