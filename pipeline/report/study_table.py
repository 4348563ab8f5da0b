"""A study's table as the papers print it: one block a model, one row an arm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from aoq.pipeline.config.study import Study

NAMES = {f"{way}_r{k}": f"{way}@{k}" for way in ("i2t", "t2i") for k in (1, 5, 10)}
NAMES |= {"attention_precision": "att. P", "attention_recall": "att. R", "attention_f1": "att. F1"}
MINUS = str.maketrans("-", "−")


def header(study: Study) -> list[str]:
    columns = [NAMES.get(column, column) for column in study.columns]
    return ["", "seeds", *columns, f"rsum to {study.says(study.baseline)}", "steps/s", "minutes"]


def cells_of(study: Study, line: Mapping[str, Any]) -> list[str]:
    """One row of the summary: means, ± standard deviations for rsum, the gain with its interval, speed, time."""
    values = [_number(line[column]) for column in study.columns]
    values = [
        value + _deviation(line["rsum_sd"]) if column == "rsum" else value
        for column, value in zip(study.columns, values, strict=True)
    ]
    speed, minutes = f"{line['steps_per_second']:.2f}", f"{line['training_seconds'] / 60:.1f}"
    return [line["says"], str(line["seeds"]), *values, _gain(line), speed, minutes]


def markdown(study: Study, summary: Sequence[Mapping[str, Any]]) -> str:
    """All blocks, each with the experiment it is about."""
    parts = [f"# {study.title or study.name}\n"]
    for model, experiment in study.models.items():
        rows = [cells_of(study, line) for line in summary if line["model"] == model]
        rules = ["---", *["---:"] * (len(header(study)) - 1)]
        lines = (header(study), rules, *rows)
        table = [f"| {' | '.join(map(_escaped, line))} |" for line in lines]
        parts.append("\n".join([f"**{model}** (`{experiment}`)\n", *table, ""]))
    parts.append(
        "Means over seeds, ± their standard deviation; differences are of equal seeds, in brackets the 95 % interval "
        "of a bootstrap over seeds and queries. Minutes are those of the training steps.\n"
    )
    return "\n".join(parts)


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|")


def _gain(line: Mapping[str, Any]) -> str:
    if line.get("rsum_gain") is None:
        return ""
    text = f"{line['rsum_gain']:+.1f}".translate(MINUS) + _deviation(line["rsum_gain_sd"])
    if line.get("rsum_gain_low") is None:
        return text
    return text + f" [{line['rsum_gain_low']:+.1f}, {line['rsum_gain_high']:+.1f}]".translate(MINUS)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _deviation(value: float | None) -> str:
    return "" if value is None else f" ± {value:.1f}"
