"""The global similarity pass: embeddings in, a negative table out, unit by unit."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from jaxtyping import Int32

from pipeline.artifact import write_atomically
from pipeline.mining.backends import choose_backend
from pipeline.mining.lists import Summary, certificates, row_groups
from pipeline.mining.problem import Problem
from pipeline.mining.runners import Progress, Runner, run_in_process
from pipeline.mining.table import (
    CERTIFICATES,
    DIRECTIONS,
    FORMAT_VERSION,
    MANIFEST,
    Direction,
    list_writer,
    write_positives,
)
from pipeline.mining.units import Steps


def mine(
    problem: Problem,
    *,
    search: str,
    provenance: Mapping[str, Any],
    work: Path,
    output: Path,
    recall_floor: float = 0.95,
    run: Runner = run_in_process,
    progress: Progress = lambda done, total: None,
) -> None:
    """Write the table to the folder `output`; finished units in `work` are kept and used.

    `search` is a backend's name (`pipeline.mining.backends`); lists of one that only comes near are refused if fewer
    than `recall_floor` of the true ones are in them. `run` does the units (`pipeline.mining.runners`). `provenance`
    (dataset fingerprint, teacher, ...) goes into every footer and the manifest.
    """
    if (output / MANIFEST).is_file():  # written last: an earlier run was cut short between the table and the clean-up
        shutil.rmtree(work, ignore_errors=True)
        return
    backend = choose_backend(search)
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
    _write_table(output, work, steps, {**provenance}, backend.name, guarantees, problem.image_of)
    shutil.rmtree(work)


def _write_table(
    output: Path,
    work: Path,
    steps: Steps,
    provenance: dict[str, Any],
    search: str,
    guarantees: Mapping[Direction, Mapping[str, Any]],
    image_of: Int32[np.ndarray, " captions"],
) -> None:
    output.mkdir(parents=True, exist_ok=True)
    write_positives(output, image_of)
    header = {"format_version": FORMAT_VERSION, **provenance}
    manifest: dict[str, Any] = {**header, "directions": {}}
    names = [name for step in steps for unit in step for name in unit.outputs]
    for direction in DIRECTIONS:
        shards = [work / f"{name}.parquet" for name in names if name.startswith(f"{direction}-")]
        h = pq.read_schema(shards[0]).field("scores").type.list_size
        about = {"direction": direction, "h": h, "search": search, **guarantees[direction]}
        summary = Summary()
        with (
            list_writer(output / f"{direction}.parquet", h, {**header, **about}) as lists,
            pq.ParquetWriter(output / f"{direction}.certificates.parquet", CERTIFICATES, compression="zstd") as beside,
        ):
            for group in row_groups(pq.read_table(shard, page_checksum_verification=True) for shard in shards):
                lists.write_table(group.drop_columns("bound").cast(lists.schema))
                beside.write_table(certificates(group))
                summary.add(group)
        manifest["directions"][direction] = {**about, **summary.figures()}
    write_atomically(output / MANIFEST, (json.dumps(manifest, indent=1) + "\n").encode())
