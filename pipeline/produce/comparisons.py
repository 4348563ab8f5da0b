"""Produce the page of a report, and the tables of a study whose every cell is complete."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from aoq.models.base import MatchingModel
from aoq.pipeline.build import Build
from aoq.pipeline.data.batches import PairData
from aoq.pipeline.engine import Engine
from aoq.pipeline.evaluation.retrieval import Ranks, folded_ranks, open_similarity
from aoq.pipeline.evaluation.significance import rsum_intervals
from aoq.pipeline.planning.chain import Chain
from aoq.pipeline.planning.comparisons import Cell, PlannedReport, PlannedStudy
from aoq.pipeline.planning.opening import open_checked
from aoq.pipeline.produce.data import open_named_pairs, open_train_split
from aoq.pipeline.report.study import Row, markdown, read_cell, summarise_study
from aoq.pipeline.training.checkpoint import load_model

RANKS = pa.schema(
    {"model": "string", "arm": "string", "seed": "int64", "direction": "string", "query": "int32", "rank": "int32"}
)


def produce_report(planned: PlannedReport, build: Build, engine: Engine) -> None:
    """Write `report.html`."""
    build.clear()
    engine.torch_device()
    (build.directory / "report.html").write_text(render_report(planned), encoding="utf-8")


def render_report(
    planned: PlannedReport, evaluating: Callable[[str], str] = lambda name: shlex.join(["aoq", "evaluate", name])
) -> str:
    """Render the page from complete results; runs not evaluated yet have gaps, and the command of `evaluating`."""
    from aoq.pipeline.report.page import render  # needs jinja2 and matplotlib, which no other stage does

    named = [(member.asked, member.chain) for member in planned.members]
    return render(named, open_train=open_train_split, open_model=_open_model, evaluating=evaluating)


def _open_model(chain: Chain) -> tuple[MatchingModel, PairData]:
    pairs = open_named_pairs(chain, chain.experiment.evaluation.split)
    return load_model(chain["second_round"].opened() / "model.safetensors"), pairs


def produce_study(planned: PlannedStudy, build: Build, engine: Engine) -> None:
    """Write `results.parquet` (a row per training), `ranks.parquet` (per query), `summary.parquet` and `table.md`."""
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
    split = open_checked(cell.chain, cell.chain.experiment.evaluation.split)
    similarity = open_similarity(cell.artifact.opened() / "similarity.npy", split.image_count, split.caption_count)
    return folded_ranks(similarity, split.image_of, split.identity, folds=cell.chain.experiment.evaluation.folds)


def _image_of(cell: Cell) -> np.ndarray:
    return open_checked(cell.chain, cell.chain.experiment.evaluation.split).image_of


def _write_ranks(path: Path, cells: Sequence[Cell], ranks: Sequence[Ranks]) -> None:
    with pq.ParquetWriter(path, RANKS, compression="zstd") as writer:
        for cell, found in zip(cells, ranks, strict=True):
            for direction, values in (("i2t", found.i2t), ("t2i", found.t2i)):
                about = ([value] * len(values) for value in (cell.model, cell.arm, cell.seed, direction))
                writer.write_table(pa.table([*about, np.arange(len(values)), values], schema=RANKS))


def _add_intervals(
    baseline: str, model: str, cells: Sequence[Cell], ranks: Sequence[Ranks], summary: Sequence[Row]
) -> None:
    """Add intervals of the rsum's gains over the baseline to the model's lines."""
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
    """Write rows with the columns of all of them; a column without any value is numeric."""
    columns = {name: [row.get(name) for row in rows] for name in dict.fromkeys(name for row in rows for name in row)}
    arrays = {
        name: pa.array(values, pa.float64() if values.count(None) == len(values) else None)
        for name, values in columns.items()
    }
    pq.write_table(pa.table(arrays), path, compression="zstd", write_page_checksum=True)
