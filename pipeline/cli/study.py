"""A study's table in the terminal, whole or as far as it is."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from aoq.pipeline.planning.study import PlannedStudy
from aoq.pipeline.report.study import Row, read_cell, summarise_study, table_of
from aoq.pipeline.settings import configured_path

WIDTH = 200
"""Rows are not folded: they are as long as the study has columns."""
NAMED = 8
"""Trainings that are missing are named up to this many."""


def show_study(planned: PlannedStudy, models: Sequence[str], arms: Sequence[str]) -> None:
    """The rows of the models and arms named, of all where none is."""
    study = planned.study
    for given, known, option in ((models, study.models, "--model"), (arms, study.arms, "--arm")):
        if unknown := [name for name in given if name not in known]:
            raise ValueError(f"study {study.name!r} has no {option} {unknown[0]!r}; it has {list(known)}.")
    lines = [line for line in _summary(planned) if line["arm"] in (arms or study.arms)]
    console = Console(width=WIDTH, markup=False, emoji=False)  # names are the user's
    shown = False
    for model in (model for model in study.models if model in (models or study.models)):
        (_, *header), *rows = table_of(study, model, lines)
        if not rows:
            continue
        table = Table(box=None, pad_edge=False, header_style="bold", title_justify="left")
        table.title = f"{model} ({study.models[model]})"
        table.add_column("", overflow="fold")
        for column in header:
            table.add_column(column, justify="right", no_wrap=True)
        for row in rows:
            table.add_row(*row)
        console.print(table)
        console.print()
        shown = True
    if not shown:
        console.print("nothing of what was asked is there.\n")
    console.print(_what_is_there(planned), highlight=False, soft_wrap=True)


def _summary(planned: PlannedStudy) -> list[Row]:
    """As it was published, with its intervals; else of the cells that are there."""
    if planned.artifact.exists():
        return list(pq.read_table(planned.artifact.path / "summary.parquet").to_pylist())
    return summarise_study(planned.study, [read_cell(cell) for cell in planned.cells if cell.is_there])


def _what_is_there(planned: PlannedStudy) -> str:
    if planned.artifact.exists():
        return f"results.parquet, summary.parquet, ranks.parquet, table.md: {planned.artifact.path}"
    missing = [f"{cell.model}/{cell.arm}/{cell.seed}" for cell in planned.cells if not cell.is_there]
    named = ", ".join(missing[:NAMED]) + (", ..." if len(missing) > NAMED else "")
    count = len(planned.cells)
    said = f"{count - len(missing)} of {count} trainings are there, so without intervals; "
    return f"{said}{f'missing: {named}; ' if missing else ''}the rest: {_command(planned)}"


def _command(planned: PlannedStudy) -> str:
    """What makes the study where it was looked for."""
    words = ["luigi", "--module", "tasks", "Ablation", "--study", planned.asked]
    for option, folder in (("data_root", planned.cells[0].chain.data_root), ("artifact_root", planned.artifact.root)):
        if folder != configured_path(option):
            words += [f"--{option.replace('_', '-')}", str(folder)]
    return shlex.join(words)
