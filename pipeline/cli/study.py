"""A study's table in the terminal, whole or as far as it is."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from aoq.pipeline.planning.study import StudyPlan
from aoq.pipeline.report.study_results import Row, read_cell, summarise_study
from aoq.pipeline.report.study_table import cells_of, header
from aoq.pipeline.settings import configured_path

WIDTH = 200
"""Rows are not folded: they are as long as the study has columns."""
NAMED = 8
"""Of the trainings that are missing."""


def show_study(plan: StudyPlan, models: Sequence[str], arms: Sequence[str]) -> None:
    """The rows of the models and arms named, of all where none is."""
    study = plan.study
    for given, known, option in ((models, study.models, "--model"), (arms, study.arms, "--arm")):
        if unknown := [name for name in given if name not in known]:
            raise ValueError(f"study {study.name!r} has no {option} {unknown[0]!r}; it has {list(known)}.")
    lines = [
        line
        for line in _summary(plan)
        if line["model"] in (models or study.models) and line["arm"] in (arms or study.arms)
    ]
    console = Console(width=WIDTH, markup=False, emoji=False)  # names are the user's
    for model in study.models:
        rows = [cells_of(study, line) for line in lines if line["model"] == model]
        if rows:
            _show(console, f"{model} ({study.models[model]})", header(study), rows)
    if not lines:
        console.print("nothing of what was asked is there.\n")
    _say_what_is_there(console, plan)


def _summary(plan: StudyPlan) -> list[Row]:
    """As it was published, with its intervals; else of the cells that are there."""
    if plan.artifact.exists():
        return list(pq.read_table(plan.artifact.path / "summary.parquet").to_pylist())
    return summarise_study(plan, [read_cell(cell) for cell in plan.cells if cell.is_there])


def _show(console: Console, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold", title=title, title_justify="left")
    table.add_column("", overflow="fold")
    for column in columns[1:]:
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console.print(table)
    console.print()


def _say_what_is_there(console: Console, plan: StudyPlan) -> None:
    if plan.artifact.exists():
        said = f"results.parquet, summary.parquet, ranks.parquet, table.md: {plan.artifact.path}"
    else:
        missing = [f"{cell.model}/{cell.arm}/{cell.seed}" for cell in plan.cells if not cell.is_there]
        named = ", ".join(missing[:NAMED]) + (", ..." if len(missing) > NAMED else "")
        count = len(plan.cells)
        said = f"{count - len(missing)} of {count} trainings are there, so without intervals; "
        said += f"missing: {named}; " if missing else ""
        said += f"the rest: {_command(plan)}"
    console.print(said, highlight=False, soft_wrap=True)


def _command(plan: StudyPlan) -> str:
    """What makes the study where it was looked for."""
    words = ["luigi", "--module", "tasks", "Ablation", "--study", plan.asked]
    for option, folder in (("data_root", plan.cells[0].chain.data_root), ("artifact_root", plan.artifact.root)):
        if folder != configured_path(option):
            words += [f"--{option.replace('_', '-')}", str(folder)]
    return shlex.join(words)
