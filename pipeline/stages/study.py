"""A study: every arm on every model with every seed, and the tables that compare them.

Every cell is an experiment with an override, so common stages have one key and are made once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from aoq.pipeline.artifact import Artifact
from aoq.pipeline.build import Build
from aoq.pipeline.config.experiment import Experiment
from aoq.pipeline.config.load import load_experiment, merged, override_text, parse_override, split_member
from aoq.pipeline.config.losses import LossSection
from aoq.pipeline.config.study import Change, Study, load_study
from aoq.pipeline.engine import Engine
from aoq.pipeline.evaluation.retrieval import Ranks, folded_ranks, open_similarity
from aoq.pipeline.evaluation.significance import rsum_intervals
from aoq.pipeline.stages.chain import Cell, same_queries
from aoq.pipeline.stages.plan import plan
from aoq.pipeline.stages.splits import open_checked

if TYPE_CHECKING:
    from aoq.pipeline.report.study import Row

logger = logging.getLogger(__name__)

RANKS = pa.schema(
    {"model": "string", "arm": "string", "seed": "int64", "direction": "string", "query": "int32", "rank": "int32"}
)


@dataclass(frozen=True)
class PlannedStudy:
    """All cells, seed by seed, so that an unfinished study has every arm before it repeats one."""

    study: Study
    asked: str
    """The study's name or file, as given."""
    cells: tuple[Cell, ...]
    artifact: Artifact


def plan_study(name: str, *, data_root: Path, artifact_root: Path) -> PlannedStudy:
    """Plan every cell's chain; only the data must exist."""
    study = load_study(name)
    cells = tuple(_cells(study, data_root, artifact_root))
    _check(study, cells)
    named = [[cell.model, cell.arm, study.says(cell.arm), cell.seed] for cell in cells]
    ingredients = study.model_dump(include={"title", "baseline", "columns"}) | {"cells": named}
    evaluations = tuple(cell.artifact for cell in cells)
    return PlannedStudy(study, name, cells, Artifact(artifact_root, "study", 1, ingredients, evaluations))


def _cells(study: Study, data_root: Path, artifact_root: Path) -> Iterator[Cell]:
    bases = {model: _base(study, model, member) for model, member in study.models.items()}
    for seed in study.seeds:
        for model, member in study.models.items():
            name, override = split_member(member)
            for arm in study.arms_of(model):
                try:
                    own = merged(study.arms[arm].change, study.arms[arm].change_for.get(model, {}))
                    change = merged(parse_override(override), _with_numbers(own, bases[model]))
                    chosen = override_text({**change, "seed": seed})
                    chain = plan(name, override=chosen, data_root=data_root, artifact_root=artifact_root)
                except (ValueError, OSError) as error:
                    raise ValueError(
                        f"study {study.name!r}: model {model!r} ({member}) cannot run arm {arm!r}: {error}; change "
                        f"[arms.{arm}], or name there the `models` that can run it."
                    ) from None
                yield Cell(f"{name}@{chosen}", chain, "evaluation", model, arm, seed)


def _base(study: Study, model: str, member: str) -> Experiment:
    """Load the experiment that the arms change."""
    name, override = split_member(member)
    where = f"study {study.name!r}: [models] {model}"
    try:
        experiment = load_experiment(name, override)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    if not isinstance(experiment, Experiment) or experiment.weights is not None:
        raise ValueError(f"{where}: experiment {member!r} trains nothing.")
    if "seed" in parse_override(override):
        raise ValueError(f"{where} sets a seed, which is what `seeds` are for.")
    return experiment


def _with_numbers(change: Change, base: Experiment) -> Change:
    """Add the numbers of the loss that the change replaces: they suit the model's scores rather than the loss."""
    second_round = change.get("second_round")
    if not isinstance(second_round, dict) or not isinstance(second_round.get("loss"), dict):
        return change
    loss = second_round["loss"]
    try:
        section = LossSection.kind(str(loss.get("name", "")))
    except ValueError:  # loading the experiment raises the better message
        return change
    here = base.student.loss.model_dump(exclude={"name"})
    online = here.get("margin", here.get("margin_online"))  # with offline negatives its name differs
    numbers = {
        number: value
        for number, value in {"margin": online, "margin_online": online, **here}.items()
        if number in section.model_fields and value not in (None, section.model_fields[number].default)
    }
    return {**change, "second_round": {**second_round, "loss": {**numbers, **loss}}}


def _check(study: Study, cells: tuple[Cell, ...]) -> None:
    """Refuse arms with other queries, as they are compared query by query; name those that are one training."""
    first: dict[str, Cell] = {}
    trained: dict[tuple[str, int, str], str] = {}
    for cell in cells:
        if not same_queries(first.setdefault(cell.model, cell).chain, cell.chain):
            raise ValueError(
                f"study {study.name!r}: arm {cell.arm!r} of model {cell.model!r} is evaluated on other data than the "
                "baseline, so they cannot be compared; make it a model of its own."
            )
        arm = trained.setdefault((cell.model, cell.seed, cell.artifact.key), cell.arm)
        if arm != cell.arm and cell.seed == study.seeds[0]:  # a typing error in one of them, or an explicit default
            twins = study.name, arm, cell.arm, cell.model
            logger.warning("study %r: arms %r and %r of model %r are the same training", *twins)


def make_study(planned: PlannedStudy, build: Build, engine: Engine) -> None:
    """Write `results.parquet` (a row per training), `ranks.parquet` (per query), `summary.parquet` and `table.md`."""
    from aoq.pipeline.report.study import markdown, read_cell, summarise_study

    build.clear()
    study, rows = planned.study, [read_cell(cell) for cell in planned.cells]
    _write(build.directory / "results.parquet", rows)
    ranks = [_ranks(cell) for cell in planned.cells]
    with pq.ParquetWriter(build.directory / "ranks.parquet", RANKS, compression="zstd") as writer:
        for cell, both in zip(planned.cells, ranks, strict=True):
            for direction, values in (("i2t", both.i2t), ("t2i", both.t2i)):
                about = ([value] * len(values) for value in (cell.model, cell.arm, cell.seed, direction))
                writer.write_table(pa.table([*about, np.arange(len(values)), values], schema=RANKS))
    summary = summarise_study(study, rows)
    for model in study.models:
        _add_intervals(study.baseline, model, planned.cells, ranks, summary)
    _write(build.directory / "summary.parquet", summary)
    (build.directory / "table.md").write_text(markdown(study, summary), encoding="utf-8")
    build.notes |= {"study": study.name, "cells": len(rows)}


def _ranks(cell: Cell) -> Ranks:
    evaluation = cell.chain.experiment.evaluation
    split = open_checked(cell.chain, evaluation.split)
    similarity = open_similarity(cell.artifact.opened() / "similarity.npy", split.image_count, split.caption_count)
    return folded_ranks(similarity, split.image_of, split.identity, folds=evaluation.folds)


def _add_intervals(
    baseline: str, model: str, cells: Sequence[Cell], ranks: Sequence[Ranks], summary: Sequence[Row]
) -> None:
    """Add intervals of the rsum's gains over the baseline to the model's lines."""
    by_arm: dict[str, list[Ranks]] = {}
    for cell, both in zip(cells, ranks, strict=True):
        if cell.model == model:
            by_arm.setdefault(cell.arm, []).append(both)
    first = next(cell for cell in cells if cell.model == model)
    image_of = open_checked(first.chain, first.chain.experiment.evaluation.split).image_of
    compared = by_arm.pop(baseline)
    intervals = rsum_intervals(by_arm, compared, image_of, rng=np.random.default_rng(0))
    for line in summary:
        if line["model"] == model:
            line["rsum_gain_low"], line["rsum_gain_high"] = intervals.get(line["arm"], (None, None))


def _write(path: Path, rows: Sequence[Row]) -> None:
    """Write rows with the columns of all of them; a column without any value is numeric."""
    columns = {name: [row.get(name) for row in rows] for name in dict.fromkeys(name for row in rows for name in row)}
    arrays = {
        name: pa.array(values, pa.float64() if values.count(None) == len(values) else None)
        for name, values in columns.items()
    }
    pq.write_table(pa.table(arrays), path, compression="zstd", write_page_checksum=True)
