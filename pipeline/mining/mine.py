"""The global similarity pass: embeddings in, a negative table out, unit by unit."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from aoq.pipeline.search.backends import Backend, choose_backend
from aoq.pipeline.search.problem import DIRECTIONS, Direction, Problem
from aoq.pipeline.search.runners import Progress, Runner, run_in_process
from aoq.pipeline.search.units import Steps
from aoq.pipeline.tables.files import MANIFEST
from aoq.pipeline.tables.pairs import paired
from aoq.pipeline.tables.writing import write_table


def mine(
    problem: Problem,
    *,
    search: str | Backend,
    provenance: Mapping[str, Any],
    work: Path,
    output: Path,
    recall_floor: float = 0.95,
    run: Runner = run_in_process,
    progress: Progress = lambda done, total: None,
) -> None:
    """Write the table to the folder `output`; finished units in `work` are kept and used.

    `search` is a backend or its name (`aoq.pipeline.search.backends`); lists of one that only comes near are refused if
    fewer than `recall_floor` of the true ones are in them. `run` does the units (`aoq.pipeline.search.runners`).
    `provenance` (dataset fingerprint, teacher, ...) goes into every footer and the manifest.
    """
    if (output / MANIFEST).is_file():  # written last: an earlier run was cut short between the table and the clean-up
        shutil.rmtree(work, ignore_errors=True)
        return
    backend = choose_backend(search) if isinstance(search, str) else search
    work.mkdir(parents=True, exist_ok=True)
    steps = backend.plan(problem)
    run(steps, problem, work, progress)
    guarantees = {direction: backend.guarantee(work, direction) for direction in DIRECTIONS}
    for direction, guarantee in guarantees.items():
        if guarantee.get("recall", 1.0) < recall_floor:
            raise ValueError(
                f"{backend.name} finds {guarantee['recall']:.1%} of the {direction} lists, and mining.recall_floor is "
                f"{recall_floor:.1%}; let it search wider (nprobe, efSearch), lower the floor, or search exactly."
            )
    made = {
        direction: (
            {"h": problem[direction].h, "search": backend.name, **guarantees[direction]},
            (pq.read_table(shard, page_checksum_verification=True) for shard in _shards(steps, work, direction)),
        )
        for direction in DIRECTIONS
    }
    write_table(output, provenance, made, paired(problem.image_of))
    shutil.rmtree(work)


def _shards(steps: Steps, work: Path, direction: Direction) -> list[Path]:
    names = [name for step in steps for unit in step for name in unit.outputs]
    return [work / f"{name}.parquet" for name in names if name.startswith(f"{direction}-")]
