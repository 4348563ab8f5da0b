"""The tables of a study whose every cell is there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from aoq.pipeline.artifact import Build
from aoq.pipeline.data.folder import open_split
from aoq.pipeline.engine import Engine
from aoq.pipeline.evaluation.retrieval import Ranks, folded_ranks
from aoq.pipeline.evaluation.significance import rsum_intervals
from aoq.pipeline.planning.study import Cell, PlannedStudy
from aoq.pipeline.report.study import Row, markdown, read_cell, summarise_study

RANKS = pa.schema(
    [
        ("model", pa.string()),
        ("arm", pa.string()),
        ("seed", pa.int64()),
        ("direction", pa.string()),
        ("query", pa.int32()),
        ("rank", pa.int32()),
    ]
)


def produce_study(planned: PlannedStudy, build: Build, engine: Engine) -> None:
    """`results.parquet` (a row a training), `ranks.parquet` (a row a query), `summary.parquet` and `table.md`."""
    build.clear()
    study, rows = planned.study, [read_cell(cell) for cell in planned.cells]
    _write(build.directory / "results.parquet", rows)
    ranks = [_ranks(cell) for cell in planned.cells]
    _write_ranks(build.directory / "ranks.parquet", planned.cells, ranks)
    summary = summarise_study(study, rows)
    for model in study.models:
        _add_intervals(study.baseline, model, planned.cells, ranks, summary)
    _write(build.directory / "summary.parquet", summary)
    (build.directory / "table.md").write_text(markdown(study, summary), encoding="utf-8")
    build.notes |= {"study": study.name, "cells": len(rows)}


def _ranks(cell: Cell) -> Ranks:
    similarity = np.load(cell.chain["evaluation"].path / "similarity.npy", mmap_mode="r")
    return folded_ranks(similarity, _image_of(cell), folds=cell.chain.experiment.evaluation.folds)


def _image_of(cell: Cell) -> np.ndarray:
    return open_split(cell.chain.folder, cell.chain.experiment.evaluation.split).image_of


def _write_ranks(path: Path, cells: Sequence[Cell], ranks: Sequence[Ranks]) -> None:
    with pq.ParquetWriter(path, RANKS, compression="zstd") as writer:
        for cell, found in zip(cells, ranks, strict=True):
            for direction, values in (("i2t", found.i2t), ("t2i", found.t2i)):
                about = ([value] * len(values) for value in (cell.model, cell.arm, cell.seed, direction))
                columns = (*about, np.arange(len(values)), values)
                writer.write_table(pa.table(dict(zip(RANKS.names, columns, strict=True)), schema=RANKS))


def _add_intervals(
    baseline: str, model: str, cells: Sequence[Cell], ranks: Sequence[Ranks], summary: Sequence[Row]
) -> None:
    """Intervals of the rsum's gains over the baseline, to the model's lines."""
    of_arm: dict[str, list[Ranks]] = {}
    for cell, of_cell in zip(cells, ranks, strict=True):
        if cell.model == model:
            of_arm.setdefault(cell.arm, []).append(of_cell)
    image_of = _image_of(next(cell for cell in cells if cell.model == model))
    compared = of_arm.pop(baseline)
    found = rsum_intervals(of_arm, compared, image_of, rng=np.random.default_rng(0))
    for line in summary:
        if line["model"] == model:
            line["rsum_gain_low"], line["rsum_gain_high"] = found.get(line["arm"], (None, None))


def _write(path: Path, rows: Sequence[Row]) -> None:
    """Rows with all columns that any of them has; a column without any value is one of numbers."""
    columns = {name: [row.get(name) for row in rows] for name in dict.fromkeys(name for row in rows for name in row)}
    arrays = {
        name: pa.array(values, pa.float64() if values.count(None) == len(values) else None)
        for name, values in columns.items()
    }
    pq.write_table(pa.table(arrays), path, compression="zstd", write_page_checksum=True)
