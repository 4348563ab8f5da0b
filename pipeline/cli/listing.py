"""`aoq list`: the names of experiments, studies, stages and searches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import click
from rich.table import Column

from aoq.pipeline.cli.options import as_json
from aoq.pipeline.cli.output import echo_json, echo_next, say, show_rows
from aoq.pipeline.config.dataset import Dataset
from aoq.pipeline.config.experiment import Experiment
from aoq.pipeline.config.load import load_experiment, names_in, split_member
from aoq.pipeline.config.study import STUDIES, load_study

Rows = Iterator[dict[str, Any]]
SHOWN = ("experiments", "studies", "stages")


@click.command("list")
@click.argument("kind", required=False, type=click.Choice([*SHOWN, "searches"]))
@as_json
def list_(kind: str | None, as_json: bool) -> None:
    """List experiments, studies, stages.

    Listed are those of ./configs and those that aoq brings, or those of one KIND. `aoq list searches` describes the
    searches that `aoq mine --search` and [mining] take.
    """
    lists = {name: list(LISTS[name]()) for name in ([kind] if kind else SHOWN)}
    if as_json:
        echo_json(lists)
        return
    for name, rows in lists.items():
        first, *others = rows[0] if rows else [name]
        show_rows([Column(first, no_wrap=True), *others], [[str(value) for value in row.values()] for row in rows])
        say()
    if kind is None:
        echo_next("aoq run EXPERIMENT", "aoq study STUDY")


def _experiments() -> Rows:
    for name in names_in():
        try:
            yield {"experiment": name, **_about(name)}
        except (ValueError, OSError) as error:  # a broken file hides no other
            yield {"experiment": name, "data": "", "model": "", "table": str(error)}


def _about(name: str) -> dict[str, str]:
    experiment = load_experiment(name)
    if not isinstance(experiment, Experiment):
        return {"data": "", "model": "", "table": type(experiment).__name__.lower()}
    teacher = split_member(experiment.teacher)[0] if experiment.teacher else None
    table = teacher if teacher else "its own" if experiment.mining else "none"
    return {"data": _data(experiment.dataset), "model": experiment.model.name, "table": table}


def _data(dataset: Dataset) -> str:
    return "generated" if dataset.demo else dataset.folder or str(dataset.source.path if dataset.source else "")


def _studies() -> Rows:
    for name in names_in(STUDIES):
        try:
            study = load_study(name)
        except (ValueError, OSError) as error:
            yield {"study": name, "size": "", "title": str(error)}
            continue
        sizes = f"{len(study.arms)} arms, {len(study.models)} models, {len(study.seeds)} seeds"
        yield {"study": name, "size": sizes, "title": study.title}


def _stages() -> Rows:
    from aoq.tasks.stages import TASKS

    for stage, task in TASKS.items():
        yield {
            "stage": stage,
            "what it is": (task.__doc__ or "").strip().splitlines()[0],
            "Luigi's task": task.__name__,
        }


def _searches() -> Rows:
    from aoq.pipeline.search.backends import BACKENDS

    yield {"search": "auto", "about": "the fastest exact one on this machine"}
    for name, backend in BACKENDS.items():
        yield {"search": name, "about": backend.about}


LISTS: dict[str, Callable[[], Rows]] = {
    "experiments": _experiments,
    "studies": _studies,
    "stages": _stages,
    "searches": _searches,
}
