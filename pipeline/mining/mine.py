"""The global similarity pass: embeddings in, a negative table out, unit by unit."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aoq.pipeline.search.problem import DIRECTIONS, Problem
from aoq.pipeline.search.runners import RECALL_FLOOR, Runner, run_in_process, run_search
from aoq.pipeline.search.store import Folder
from aoq.pipeline.search.units import Backend, Progress
from aoq.pipeline.tables.files import MANIFEST
from aoq.pipeline.tables.writing import write_table


def mine(
    problem: Problem,
    *,
    search: str | Backend,
    provenance: Mapping[str, Any],
    work: Path,
    output: Path,
    recall_floor: float = RECALL_FLOOR,
    run: Runner = run_in_process,
    progress: Progress = lambda done, total: None,
) -> None:
    """Write the table to the folder `output`; finished units in `work` are kept and used.

    `search`, `recall_floor` and `run` are those of `aoq.pipeline.search.runners.run_search`. `provenance` (dataset
    fingerprint, teacher, ...) goes into every footer and the manifest.
    """
    if (output / MANIFEST).is_file():  # written last: an earlier run was cut short between the table and the clean-up
        shutil.rmtree(work, ignore_errors=True)
        return
    if len(problem.directions) < len(DIRECTIONS):
        raise ValueError("a table has lists of both directions; h_captions and h_images must be at least 1.")
    work.mkdir(parents=True, exist_ok=True)
    store = Folder(work)
    found = run_search(problem, search, store, recall_floor=recall_floor, run=run, progress=progress)
    made = {
        direction: (
            {"h": problem[direction].h, "search": found.search, **found.guarantees[direction]},
            map(store.read, found.lists[direction]),
        )
        for direction in DIRECTIONS
    }
    write_table(output, provenance, made, problem.positives)
    shutil.rmtree(work)
