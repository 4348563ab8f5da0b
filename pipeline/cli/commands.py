"""The commands by what they are for, each imported when it is asked for: help and usage errors need none of them."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from importlib import import_module
from typing import Any

import click

from aoq.pipeline.cli.naming import EXPERIMENT
from aoq.pipeline.cli.output import echo
from aoq.pipeline.near_names import did_you_mean
from aoq.pipeline.terminal import escape_what_the_terminal_lacks, visible

GROUPS = {
    "Make": {
        "run": "Make an experiment, or one stage.",
        "study": "Run a study: arms, models, seeds.",
        "evaluate": "Evaluate an experiment's student.",
        "prepare": "Make a dataset of photographs.",
        "embed": "Embed images and captions.",
        "estimate": "Estimate what mining will take.",
        "mine": "Mine a table from your vectors.",
        "to-judge": "Write pairs for a judge to fill in.",
        "screen": "Flag suspected false negatives.",
        "batches": "Write batches of hard negatives.",
        "import-checkpoint": "Convert an official checkpoint.",
    },
    "Look": {
        "list": "List experiments, studies, stages.",
        "status": "Show what is made or missing.",
        "results": "Show recalls, with a verdict.",
        "inspect": "Show an anchor's hardest negatives.",
        "browse": "Browse tables and evaluations.",
        "stats": "Describe a table's scores and hubs.",
        "diff": "Compare the lists of two tables.",
        "drift": "Compare a model with its table.",
        "report": "Write one HTML page about runs.",
    },
    "Check": {
        "audit": "Check that a table is sound.",
        "verify": "Check that artefacts are whole.",
        "explain": "Show what a stage's key is made of.",
        "data": "Check or annotate dataset folders.",
        "gc": "List or delete unused artefacts.",
    },
    "Share": {
        "export": "Write a table for another trainer.",
        "import-table": "Make a table of others' lists.",
        "publish": "Write a table with a data card.",
    },
}
"""A line each, uncropped at 60 columns; a test holds it against the command's own."""

HOMES = {"study": "run", "evaluate": "run", "list": "listing", "import-checkpoint": "checkpoint"}
HOMES |= {"status": "artifacts", "verify": "artifacts", "explain": "artifacts"}
HOMES |= dict.fromkeys(("audit", "stats", "diff", "drift", "screen"), "tables")
HOMES |= {"export": "exchange", "import-table": "exchange", "browse": "pages", "report": "pages"}
"""The modules of commands that have none of their own name."""

HIDDEN = {"plan": "estimate"}
"""Old names."""
TYPED = "aoq.typed"
"""What was typed, from the command on."""
NAMES = {name: group for group, listed in GROUPS.items() for name in listed}


class Commands(click.Group):
    """Mistakes of input end as one line and exit code 1; bugs keep their traceback."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(NAMES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        name = HIDDEN.get(cmd_name, cmd_name)
        if name not in NAMES:
            return None
        home = import_module(f"aoq.pipeline.cli.{HOMES.get(name, name.replace('-', '_'))}")
        found: click.Command = getattr(home, "list_" if name == "list" else name.replace("-", "_"))
        if cmd_name in HIDDEN:
            found = copy(found)
            found.hidden = True
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            question = did_you_mean(args[0], NAMES) or "`aoq --help` lists all commands."
            ctx.fail(f"there is no command {args[0]!r}; {question}")
        ctx.meta[TYPED] = args
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """A section a group, with one column for all of them."""
        width = max(map(len, NAMES))
        for group, listed in GROUPS.items():
            with formatter.section(group):
                formatter.write_dl([(name.ljust(width), line) for name, line in listed.items()])

    def make_context(self, *given: Any, **options: Any) -> click.Context:
        escape_what_the_terminal_lacks()
        with _visible_usage():
            return super().make_context(*given, **options)

    def invoke(self, ctx: click.Context) -> object:
        try:
            with _visible_usage():
                return super().invoke(ctx)
        except (ValueError, OSError, ImportError) as error:
            echo(f"error: {error}", err=True)
            sys.exit(1)


@contextmanager
def _visible_usage() -> Iterator[None]:
    """Escape click's messages about wrong arguments, which click prints itself."""
    try:
        yield
    except click.ClickException as error:
        if isinstance(error, click.NoSuchOption) and error.option_name == "--override":
            _name_the_other_way(error)
        vars(error)["message"] = visible(error.message)  # click types it as final
        raise


def _name_the_other_way(error: click.NoSuchOption) -> None:
    """Say how a command that takes EXPERIMENT@OVERRIDE is given an override."""
    context = error.ctx
    if context is None or not any(option.type is EXPERIMENT for option in context.command.params):
        return
    command, *typed = context.meta[TYPED]
    experiment = "EXPERIMENT" if typed[0].startswith("-") else typed[0]
    given = next(n for n, word in enumerate(typed) if word.startswith("--override"))
    _, is_joined, change = typed[given].partition("=")
    change = change if is_joined else " ".join(typed[given + 1 : given + 2]) or "seed=1"
    whole = shlex.join(["aoq", command, f"{experiment}{', ' if '@' in experiment else '@'}{change}"])
    vars(error)["message"] = f"{command} has no --override; write it as {whole}"
    vars(error)["possibilities"] = None
