"""What the cells of a study came to: one row a training, and one a model and arm over its seeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from aoq.pipeline.artifact import Artifact
from aoq.pipeline.evaluation.attention import SCORES
from aoq.pipeline.planning.study import Cell, StudyPlan
from aoq.pipeline.training.metrics import read_metrics

Row = dict[str, Any]


def read_cell(cell: Cell) -> Row:
    """Metrics of the evaluation, those of attention among them, and the course of the training."""
    manifest, evaluation = cell.chain["second_round"].manifest(), cell.evaluation.manifest()
    attention = evaluation.get("attention")
    return {
        "model": cell.model,
        "arm": cell.arm,
        "seed": cell.seed,
        "experiment": cell.experiment,
        "override": cell.override,
        "training_key": cell.chain["second_round"].key,
        **evaluation["metrics"],
        **{f"attention_{name}": attention[name] for name in SCORES if attention},
        "best_epoch": manifest["best_epoch"] + 1,
        "steps": manifest["steps"],
        **_speed(cell.chain["second_round"], cell.chain.experiment.student.loss.name),
    }


def _speed(training: Artifact, loss: str) -> Row:
    """Median steps a second on the loss itself, or of all if warm-up never ended; the seconds of all steps."""
    lines = [line for line in read_metrics(training.path / "metrics.jsonl") if "steps_per_second" in line]
    steps = np.diff([0, *(line["step"] for line in lines)])
    seconds = sum(taken / line["steps_per_second"] for taken, line in zip(steps, lines, strict=True))
    own = [line["steps_per_second"] for line in lines if line["loss_name"] == loss]
    speeds = own or [line["steps_per_second"] for line in lines]
    return {"steps_per_second": float(np.median(speeds)), "training_seconds": round(seconds, 1)}


def summarise_study(plan: StudyPlan, rows: Sequence[Row]) -> list[Row]:
    """Mean and standard deviation over the seeds of each model and arm, and the same of its difference to the baseline.

    A column is one of the study's; `<column>_gain` is the mean of the differences of equal seeds. What is not there yet
    has no part in it.
    """
    study, summary = plan.study, []
    for model in study.models:
        of_arm = {arm: _by_seed(rows, model, arm) for arm in study.arms_of(model)}
        for arm, runs in of_arm.items():
            if not runs:
                continue
            line: Row = {"model": model, "arm": arm, "says": study.says(arm), "seeds": len(runs)}
            for column in dict.fromkeys((*study.columns, "rsum")):
                line |= _spread(column, [run[column] for run in runs.values() if column in run])
                gains = _gains(column, runs, of_arm[study.baseline]) if arm != study.baseline else []
                line |= _spread(f"{column}_gain", gains)
            speeds = [run["steps_per_second"] for run in runs.values()]
            line["steps_per_second"] = float(np.median(speeds))
            line["training_seconds"] = float(np.mean([run["training_seconds"] for run in runs.values()]))
            summary.append(line)
    return summary


def _by_seed(rows: Sequence[Row], model: str, arm: str) -> dict[int, Row]:
    return {row["seed"]: row for row in rows if (row["model"], row["arm"]) == (model, arm)}


def _gains(column: str, runs: dict[int, Row], baseline: dict[int, Row]) -> list[float]:
    paired = [(run, baseline[seed]) for seed, run in runs.items() if seed in baseline]
    return [run[column] - other[column] for run, other in paired if column in run and column in other]


def _spread(name: str, values: Sequence[float]) -> Row:
    """Mean and sample standard deviation, None where there are too few."""
    return {
        name: float(np.mean(values)) if values else None,
        f"{name}_sd": float(np.std(values, ddof=1)) if len(values) > 1 else None,
    }
