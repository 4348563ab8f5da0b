"""A study: every arm on every model with every seed, and the tables that compare them.

Every cell is an experiment with an override, so common stages have one key and are made once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from aoq.pipeline.artifact import Artifact
from aoq.pipeline.build import Build
from aoq.pipeline.config.experiment import Experiment
from aoq.pipeline.config.load import load_experiment, merged, override_text, parse_override, split_member
from aoq.pipeline.config.losses import LossSection
from aoq.pipeline.config.study import Change, Study, load_study
from aoq.pipeline.console import visible
from aoq.pipeline.engine import Engine
from aoq.pipeline.evaluation.retrieval import ATTENTION_SCORES, K, Ranks
from aoq.pipeline.evaluation.significance import FEWEST_SEEDS, Interval, rsum_intervals
from aoq.pipeline.stages.chain import Cell, same_queries
from aoq.pipeline.stages.plan import plan
from aoq.pipeline.stages.splits import evaluated_ranks, open_evaluated
from aoq.pipeline.training.metrics import read_metrics, training_seconds

logger = logging.getLogger(__name__)

RANKS = pa.schema(
    {"model": "string", "arm": "string", "seed": "int64", "direction": "string", "query": "int32", "rank": "int32"}
)
Row = dict[str, Any]
RECALL_NAMES = {f"{way}_r{k}": f"{way}@{k}" for way in ("i2t", "t2i") for k in K}
COLUMN_NAMES = {
    **RECALL_NAMES,
    "attention_precision": "att. P",
    "attention_recall": "att. R",
    "attention_f1": "att. F1",
}
MINUS, ESCAPED = str.maketrans("-", "−"), str.maketrans({"|": r"\|"})


@dataclass(frozen=True)
class PlannedStudy:
    """All cells, seed by seed, so that an unfinished study has every arm before it repeats one."""

    study: Study
    reference: str
    """The study's name or file, as given."""
    cells: tuple[Cell, ...]
    artifact: Artifact


def plan_study(name: str, *, data_root: Path, artifact_root: Path) -> PlannedStudy:
    """Plan every cell's chain; only the data must exist."""
    study = load_study(name)
    cells = tuple(_cells(study, data_root, artifact_root))
    _check_arms(study, cells)
    named = [[cell.model, cell.arm, study.says(cell.arm), cell.seed] for cell in cells]
    ingredients = study.model_dump(include={"title", "baseline", "columns"}) | {"cells": named}
    evaluations = tuple(cell.artifact for cell in cells)
    return PlannedStudy(study, name, cells, Artifact(artifact_root, "study", 1, ingredients, evaluations))


def _cells(study: Study, data_root: Path, artifact_root: Path) -> Iterator[Cell]:
    bases = {model: _base(study, model, member) for model, member in study.models.items()}
    for seed in study.seeds:
        for model, member in study.models.items():
            name, override = split_member(member)
            for arm in study.model_arms(model):
                try:
                    own = merged(study.arms[arm].change, study.arms[arm].change_for.get(model, {}))
                    change = merged(parse_override(override), _with_numbers(own, bases[model]))
                    chosen = override_text({**change, "seed": seed})
                    chain = plan(name, override=chosen, data_root=data_root, artifact_root=artifact_root)
                except (ValueError, OSError) as error:
                    why = str(error).rstrip(".")
                    refused = f"study {study.name!r}: model {model!r} ({member}) cannot run arm {arm!r}: {why}"
                    remedy = f"change [arms.{arm}], or name there the `models` that can run it."
                    raise ValueError(f"{refused}; {remedy}") from None
                yield Cell(f"{name}@{chosen}", chain, "evaluation", model, arm, seed)


def _base(study: Study, model: str, member: str) -> Experiment:
    name, override = split_member(member)
    where = f"study {study.name!r}: [models] {model}"
    try:
        experiment = load_experiment(name, override)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    if not isinstance(experiment, Experiment) or experiment.weights is not None:
        raise ValueError(f"{where}: experiment {member!r} trains nothing.")
    if "seed" in parse_override(override):
        raise ValueError(f"{where} sets a seed; set the study's `seeds` instead.")
    return experiment


def _with_numbers(change: Change, base: Experiment) -> Change:
    """Add the numbers of the loss that the change replaces: they suit the model's scores rather than the loss."""
    try:
        loss = change["second_round"]["loss"]
        fields = LossSection.kind(loss["name"]).model_fields
    except (KeyError, TypeError, ValueError):  # no other loss, or one that loading the experiment refuses
        return change
    here = base.student.loss.model_dump(exclude={"name"})
    online = here.get("margin", here.get("margin_online"))  # with offline negatives its name differs
    numbers = {"margin": online, "margin_online": online, **here}
    suited = {name: value for name, value in numbers.items() if name in fields and value is not None}
    suited = {name: value for name, value in suited.items() if value != fields[name].default}
    return {**change, "second_round": {**change["second_round"], "loss": {**suited, **loss}}}


def _check_arms(study: Study, cells: tuple[Cell, ...]) -> None:
    """Refuse arms with other queries, as they are compared query by query; warn of those that are the same training."""
    first: dict[str, Cell] = {}
    trained: dict[tuple[str, int, str], str] = {}
    for cell in cells:
        if not same_queries(first.setdefault(cell.model, cell).chain, cell.chain):
            other = f"arm {cell.arm!r} of model {cell.model!r} is evaluated on other data than the baseline"
            raise ValueError(f"study {study.name!r}: {other}; make it a model of its own.")
        arm = trained.setdefault((cell.model, cell.seed, cell.artifact.key), cell.arm)
        if arm != cell.arm and cell.seed == study.seeds[0]:  # a typing error in one of them, or an explicit default
            twins = study.name, arm, cell.arm, cell.model
            logger.warning("study %r: arms %r and %r of model %r are the same training", *twins)


def make_study(planned: PlannedStudy, build: Build, engine: Engine) -> None:
    """Write `results.parquet` (a row per training), `ranks.parquet` (per query), `summary.parquet` and `table.md`."""
    build.clear()
    study, rows = planned.study, [read_cell(cell) for cell in planned.cells]
    _write(build.directory / "results.parquet", [pa.Table.from_pylist([row]) for row in rows])
    ranks = [(cell, evaluated_ranks(cell.chain)) for cell in planned.cells]
    _write(build.directory / "ranks.parquet", [table for cell, both in ranks for table in _ranks_tables(cell, both)])
    summary = summarise_study(study, rows)
    of_models = {model: [one for one in ranks if one[0].model == model] for model in study.models}
    gains = {model: _intervals(its_ranks, study.baseline) for model, its_ranks in of_models.items()}
    for line in summary:
        line["rsum_gain_low"], line["rsum_gain_high"] = gains[line["model"]].get(line["arm"], (None, None))
    _write(build.directory / "summary.parquet", [pa.Table.from_pylist([line]) for line in summary])
    (build.directory / "table.md").write_text(markdown(study, summary), encoding="utf-8")
    build.notes |= {"study": study.name, "cells": len(rows)}


def _ranks_tables(cell: Cell, both: Ranks) -> Iterator[pa.Table]:
    for direction, ranks in (("i2t", both.i2t), ("t2i", both.t2i)):
        about = {"model": cell.model, "arm": cell.arm, "seed": cell.seed, "direction": direction}
        columns = {name: [value] * len(ranks) for name, value in about.items()}
        yield pa.table({**columns, "query": np.arange(len(ranks)), "rank": ranks}, schema=RANKS)


def _intervals(ranks: Sequence[tuple[Cell, Ranks]], baseline: str) -> dict[str, Interval]:
    by_arm: dict[str, list[Ranks]] = {}
    for cell, both in ranks:
        by_arm.setdefault(cell.arm, []).append(both)
    compared = by_arm.pop(baseline)
    split, _ = open_evaluated(ranks[0][0].chain)
    return rsum_intervals(by_arm, compared, split.image_of, rng=np.random.default_rng(0))


def _write(path: Path, tables: Sequence[pa.Table]) -> None:
    table = pa.concat_tables(tables, promote_options="permissive")
    pq.write_table(table, path, compression="zstd", write_page_checksum=True)


def read_cell(cell: Cell) -> Row:
    """Read the metrics of a cell, with those of attention, and the speed of its training."""
    training, evaluation = cell.chain["second_round"], cell.chain["evaluation"].manifest()
    manifest, attention = training.manifest(), evaluation.get("attention")
    experiment, override = split_member(cell.reference)
    lines = [line for line in read_metrics(training.opened() / "metrics.jsonl") if "steps_per_second" in line]
    timed = [line for line in lines if line.get("loss_name") == cell.chain.experiment.student.loss.name]
    return {
        "model": cell.model,
        "arm": cell.arm,
        "seed": cell.seed,
        "experiment": experiment,
        "override": override,
        "training_key": training.key,
        **evaluation["metrics"],
        **{f"attention_{name}": attention[name] for name in ATTENTION_SCORES if attention},
        "best_epoch": manifest["best_epoch"] + 1,
        "steps": manifest["steps"],
        # After the warm-up, or overall if that never ended.
        "steps_per_second": float(np.median([line["steps_per_second"] for line in timed or lines])),
        "training_seconds": round(training_seconds(lines), 1),
    }


def summarise_study(study: Study, rows: Sequence[Row]) -> list[Row]:
    """Compute mean and standard deviation over the seeds of each model and arm, and of the gain over the baseline.

    `<column>_gain` is the mean difference between runs of the same seed. Missing results are left out.
    """
    by_arm: dict[tuple[str, str], dict[int, Row]] = {}
    for row in rows:
        by_arm.setdefault((row["model"], row["arm"]), {})[row["seed"]] = row
    summary = []
    for model in study.models:
        baseline = by_arm.get((model, study.baseline), {})
        for arm in study.model_arms(model):
            if not (runs := by_arm.get((model, arm))):
                continue
            line: Row = {"model": model, "arm": arm, "says": study.says(arm), "seeds": len(runs)}
            paired = [(run, baseline[seed]) for seed, run in runs.items() if seed in baseline and arm != study.baseline]
            for column in dict.fromkeys((*study.columns, "rsum")):
                line |= _spread(column, [run[column] for run in runs.values() if column in run])
                gains = [run[column] - other[column] for run, other in paired if column in run and column in other]
                line |= _spread(f"{column}_gain", gains)
            line["steps_per_second"] = float(np.median([run["steps_per_second"] for run in runs.values()]))
            line["training_seconds"] = float(np.mean([run["training_seconds"] for run in runs.values()]))
            summary.append(line)
    return summary


def _spread(name: str, values: Sequence[float]) -> Row:
    return {
        name: float(np.mean(values)) if values else None,
        f"{name}_sd": float(np.std(values, ddof=1)) if len(values) > 1 else None,
    }


def model_table(study: Study, model: str, summary: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return the model's table: a header, and a line per arm with means, ± deviation of rsum, gain and speed."""
    columns = [COLUMN_NAMES.get(column, column) for column in study.columns]
    table = [["", "seeds", *columns, f"rsum to {study.says(study.baseline)}", "steps/s", "minutes"]]
    for line in summary:
        if line["model"] == model:
            means = [_format_mean(line[name], line["rsum_sd"] if name == "rsum" else None) for name in study.columns]
            gain = _format_mean(line["rsum_gain"], line["rsum_gain_sd"], "+")
            if line.get("rsum_gain_low") is not None:
                gain += f" [{line['rsum_gain_low']:+.1f}, {line['rsum_gain_high']:+.1f}]"
            speed, minutes = f"{line['steps_per_second']:.2f}", f"{line['training_seconds'] / 60:.1f}"
            table.append([line["says"], str(line["seeds"]), *means, gain.translate(MINUS), speed, minutes])
    return table


def _format_mean(mean: float | None, deviation: float | None, sign: str = "") -> str:
    spread = "" if deviation is None else f" ± {deviation:.1f}"
    return "" if mean is None else f"{mean:{sign}.1f}{spread}"


def markdown(study: Study, summary: Sequence[Mapping[str, Any]]) -> str:
    """Format the tables of all models, each under its experiment."""
    parts = [f"# {study.title or study.name}\n"]
    for model, experiment in study.models.items():
        header, *rows = model_table(study, model, summary)
        lines = (header, ["---", *["---:"] * (len(header) - 1)], *rows)
        table = [f"| {' | '.join(cell.translate(ESCAPED) for cell in line)} |" for line in lines]
        parts.append("\n".join([f"**{model}** (`{experiment}`)\n", *table, ""]))
    parts.append(
        "Means over seeds, ± their standard deviation. Gains compare equal seeds; brackets hold their 95 % interval "
        f"over at least {FEWEST_SEEDS} seeds (Student's t) and queries. Minutes count the training steps only.\n"
    )
    return visible("\n".join(parts))
