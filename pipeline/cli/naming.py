"""Names on the command line, completed by the shell; and the commands that messages tell users to type."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable
from pathlib import Path

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

ROUNDS = {"one": "first_round", "two": "second_round"}
"""Short names of the trainings; other stages go by their own names."""

STAGES = (
    "world",
    "prepared",
    "dataset",
    "first_round",
    "embeddings",
    "hard_negatives",
    "screen",
    "control",
    "second_round",
    "evaluation",
)


class Completed(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4 alone
    """A text for which the shell is offered names, and files where none of them fits."""

    name = "text"

    def __init__(self, names: Callable[[], Iterable[str]]) -> None:
        self.names = names

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        fitting = [CompletionItem(name) for name in self.names() if name.startswith(incomplete)]
        return fitting or [CompletionItem(incomplete, type="file")]


def _experiments() -> Iterable[str]:
    from aoq.pipeline.config.named_files import names_in

    return names_in()


def _studies() -> Iterable[str]:
    from aoq.pipeline.config.named_files import names_in
    from aoq.pipeline.config.study import STUDIES

    return names_in(STUDIES)


EXPERIMENT, STUDY, STAGE = Completed(_experiments), Completed(_studies), Completed(lambda: STAGES)
ROUND = Completed(lambda: (*ROUNDS, *STAGES))


def with_override(experiment: str, override: str) -> tuple[str, str]:
    """The experiment and its override, which may be given after `@`: "demo@seed=1"."""
    name, _, change = experiment.partition("@")
    if not change or Path(experiment).exists():
        return experiment, override
    if override:
        raise click.UsageError(f"{experiment} has changes after @, and --override gives more; put all into one place.")
    return name, change


def typed(*words: str) -> str:
    """A command line, with the --override and folders that the one under way was given."""
    context = click.get_current_context()
    more = []
    for name in ("override", "data_root", "artifact_root"):
        given = context.params.get(name)
        if given and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            more += [f"--{name.replace('_', '-')}", str(given)]
    return shlex.join([*words, *more])


def to_make(stage: str, experiment: str = "") -> str:
    """The command that makes a stage, of the experiment that the command under way was given if none is named."""
    experiment = experiment or str(click.get_current_context().params["experiment"])
    if stage == "evaluation":
        return typed("aoq", "evaluate", experiment)
    rounds = {named: round_ for round_, named in ROUNDS.items()}
    return typed("aoq", "run", experiment, *([] if stage == "second_round" else ["--round", rounds.get(stage, stage)]))
