"""Results of a study: a row per training, a summary over the seeds of each model and arm, and tables as in papers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from aoq.pipeline.config.load import split_member
from aoq.pipeline.config.study import Study
from aoq.pipeline.console import visible
from aoq.pipeline.evaluation.retrieval import ATTENTION_SCORES
from aoq.pipeline.evaluation.significance import FEWEST_SEEDS
from aoq.pipeline.stages.chain import Cell
from aoq.pipeline.training.metrics import read_metrics, training_seconds

Row = dict[str, Any]
COLUMN_NAMES = {f"{way}_r{k}": f"{way}@{k}" for way in ("i2t", "t2i") for k in (1, 5, 10)}
COLUMN_NAMES |= {"attention_precision": "att. P", "attention_recall": "att. R", "attention_f1": "att. F1"}
MINUS, ESCAPED = str.maketrans("-", "−"), str.maketrans({"|": r"\|"})


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
    """Return the mean and the sample standard deviation; None if there are too few values."""
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
