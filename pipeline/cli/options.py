"""Options that commands share, and names that the shell completes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial, reduce
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from aoq.pipeline.cli.output import SHORT_ROUNDS

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

STAGES = (
    *("world", "prepared", "dataset", "first_round", "embeddings", "hard_negatives", "screen"),
    *("control", "second_round", "evaluation", "student_embeddings"),
)


class Completed(click.ParamType):  # type: ignore[type-arg]  # generic only since click 8.4
    """Text that the shell completes to one of these names, or to a file."""

    name = "text"

    def __init__(self, names: Callable[[], Iterable[str]]) -> None:
        self.names = names

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        fitting = [CompletionItem(name) for name in self.names() if name.startswith(incomplete)]
        return fitting or [CompletionItem(incomplete, type="file")]


def _config_names(*, studies: bool = False) -> Iterable[str]:
    from aoq.pipeline.config.load import names_in
    from aoq.pipeline.config.study import STUDIES

    return names_in(STUDIES) if studies else names_in()


EXPERIMENT, STUDY = Completed(_config_names), Completed(partial(_config_names, studies=True))
STAGE, ROUND = Completed(lambda: STAGES), Completed(lambda: (*SHORT_ROUNDS, *STAGES))
PATH = click.Path(path_type=Path)
POSITIVE = click.IntRange(min=1)
with_default = partial(click.option, show_default=True)

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
override = click.option(
    "--override", default="", help="Changes to the experiment, such as: seed=1, second_round.epochs=4"
)
split = with_default("--split", default="train", help="The split to read.")
threads = with_default("--threads", default=0, type=click.IntRange(min=0), help="Threads; 0: all this process may use.")


def together(*options: Decorator) -> Decorator:
    return lambda command: reduce(lambda decorated, option: option(decorated), reversed(options), command)


def _configured_root(_: click.Context, option: click.Parameter, chosen: str) -> Path:
    from aoq.pipeline.settings import configured_path  # loads Luigi, which help does not need

    return configured_path(str(option.name), chosen)


def _root_options(**more: Any) -> Decorator:
    abouts = {"--data-root": "The folder of dataset folders", "--artifact-root": "The folder of artefacts"}
    help_ = "{}; default: [paths] in luigi.cfg."
    return together(
        *(click.option(name, default="", help=help_.format(about), **more) for name, about in abouts.items())
    )


roots = _root_options(callback=_configured_root)
"""The options --data-root and --artifact-root, as absolute paths."""
roots_as_typed = _root_options()


def cluster_options(where: str) -> Decorator:
    """Take --backend, whose help is `where`, and --ray-address."""
    return together(
        with_default("--backend", default="inprocess", type=click.Choice(["inprocess", "ray"]), help=where),
        click.option("--ray-address", default="", help="HOST:PORT of a Ray cluster, or auto; default: start Ray here."),
    )


def with_override(experiment: str, override: str) -> tuple[str, str]:
    """Split an experiment like "demo@seed=1" into name and override; without @, return the option's override."""
    from aoq.pipeline.config.load import split_member  # loads pydantic, which help does not need

    name, change = split_member(experiment)
    if not change or Path(experiment).exists():
        return experiment, override
    if override:
        raise click.UsageError(f"{experiment} has changes after @ and in --override; give all of them in one place.")
    return name, change


def table_folder(named: str) -> Path | None:
    """Return the folder of that name or its subfolder `table`, if it holds a table."""
    folders = (Path(named), Path(named) / "table")
    return next((folder for folder in folders if (folder / "manifest.json").is_file()), None)
