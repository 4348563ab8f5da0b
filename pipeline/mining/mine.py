"""Mine embeddings into a negative table, in units of work."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aoq.pipeline.files import digest
from aoq.pipeline.search.backends import choose_backend, run_search
from aoq.pipeline.search.lists import from_arrow
from aoq.pipeline.search.problem import Problem
from aoq.pipeline.search.units import (
    RECALL_FLOOR,
    Backend,
    Folder,
    MemoryStore,
    Progress,
    Runner,
    Store,
    run_in_process,
)
from aoq.pipeline.tables.files import table_directions
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

    The caller deletes the units once the table is published, so a kill before then repeats no search. A small job keeps
    them in memory. An approximate search keeps its indexes, as artefacts, below `indexes`, by default in `work`.
    `search`, `recall_floor` and `run` are those of `aoq.pipeline.search.backends.run_search`. `provenance` (dataset
    fingerprint, teacher, ...) goes into every footer and the manifest. `of` identifies the problem if its vectors were
    hashed already.
    """
    provenance = {"sides": ["items"], **provenance} if problem.one_set else provenance
    if problem.directions != table_directions(provenance):
        raise ValueError("a table has lists of both directions; h_captions and h_images must be at least 1.")
    work.mkdir(parents=True, exist_ok=True)
    backend = choose_backend(search, problem, recall_floor, indexes) if isinstance(search, str) else search
    store: Store = MemoryStore()
    if run is not run_in_process or not backend.is_small(problem):  # other processes need a folder
        store = Folder.opened(work, digest([backend.name, provenance, of or problem.sha256]))
    result = run_search(problem, backend, store, recall_floor=recall_floor, run=run, progress=progress)
    lists = {
        direction: (
            {"h": problem.size(direction).h, "search": result.search, **result.guarantees[direction]},
            map(from_arrow, result.lists[direction]),
        )
        for direction in problem.directions
    }
    shutil.rmtree(output, ignore_errors=True)  # left by an interrupted run
    write_table(output, provenance, lists, problem.positives)
