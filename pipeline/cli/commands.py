"""The group of all commands; help and usage errors import none of them."""

from __future__ import annotations

import atexit
import gc
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import version
from typing import Any

import click

from aoq.pipeline.cli.output import echo
from aoq.pipeline.console import STOPPED, Stopped, did_you_mean, escape_what_the_terminal_lacks, explained, visible
from aoq.pipeline.engine import let_waiting_threads_sleep

COMMANDS = {
    "Make": {
        "run": ("run", "Make an experiment, or one stage."),
        "study": ("run", "Run a study: arms, models, seeds."),
        "evaluate": ("run", "Evaluate an experiment's student."),
        "prepare": ("prepare", "Make a dataset from photographs."),
        "embed": ("prepare", "Embed images and captions."),
        "estimate": ("estimate", "Estimate what mining will take."),
        "mine": ("mine", "Mine a table from your vectors."),
        "to-judge": ("screen", "Write pairs for a judge to fill in."),
        "screen": ("screen", "Flag suspected false negatives."),
        "batches": ("batches", "Write batches of hard negatives."),
        "import-checkpoint": ("checkpoint", "Convert an official checkpoint."),
    },
    "Look": {
        "list": ("run", "List experiments, studies, stages."),
        "status": ("artifacts", "Show what is made or missing."),
        "results": ("results", "Show recalls, with a verdict."),
        "inspect": ("tables", "Show an anchor's hardest negatives."),
        "browse": ("pages", "Browse tables and evaluations."),
        "stats": ("tables", "Describe a table's scores and hubs."),
        "diff": ("tables", "Compare the lists of two tables."),
        "report": ("pages", "Write one HTML page about runs."),
    },
    "Check": {
        "audit": ("tables", "Check that a table is sound."),
        "verify": ("artifacts", "Check that artefacts are whole."),
        "explain": ("artifacts", "Show what a stage's key is made of."),
        "data": ("prepare", "Check or annotate dataset folders."),
        "gc": ("gc", "List or delete unused artefacts."),
    },
    "Share": {
        "export": ("exchange", "Write a table for another trainer."),
        "import-table": ("exchange", "Make a table from others' lists."),
        "publish": ("exchange", "Write a table with a data card."),
    },
}
"""The module and the first help line of each command, by group; the line fits 60 columns."""

MODULES = {name: module for commands in COMMANDS.values() for name, (module, _) in commands.items()}


class Commands(click.Group):
    """User errors print one line and exit with 1; bugs keep their traceback."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(MODULES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in MODULES:
            return None
        module = import_module(f"aoq.pipeline.cli.{MODULES[cmd_name]}")
        return getattr(module, f"{cmd_name.replace('-', '_')}_command")

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            question = did_you_mean(args[0], MODULES) or "`aoq --help` lists all commands."
            ctx.fail(f"there is no command {args[0]!r}; {question}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, MODULES))
        for group, commands in COMMANDS.items():
            with formatter.section(group):
                formatter.write_dl([(name.ljust(width), line) for name, (_, line) in commands.items()])

    def make_context(self, *args: Any, **options: Any) -> click.Context:
        escape_what_the_terminal_lacks()
        let_waiting_threads_sleep()
        with _visible_usage_errors():
            return super().make_context(*args, **options)

    def invoke(self, ctx: click.Context) -> object:
        try:
            with _visible_usage_errors():
                return super().invoke(ctx)
        except (ValueError, OSError, ImportError) as error:
            echo(f"error: {explained(error)}", err=True)
            sys.exit(1)
        except KeyboardInterrupt as error:
            echo(STOPPED, err=True)
            sys.exit(error.code if isinstance(error, Stopped) else 130)


@contextmanager
def _visible_usage_errors() -> Iterator[None]:
    """Escape the messages about wrong arguments that click prints itself."""
    try:
        yield
    except click.ClickException as error:
        vars(error)["message"] = visible(error.message)  # click types it as final
        raise


def _show_versions(context: click.Context, _: click.Parameter, is_wanted: bool) -> None:
    if not is_wanted or context.resilient_parsing:
        return
    import torch  # late: all other commands start without it

    from aoq.pipeline.search.faiss_flat import gpus, has_faiss, load_faiss

    processor = f"CPU ({platform.processor() or platform.machine()})"
    devices = [processor, *map(torch.cuda.get_device_name, range(torch.cuda.device_count()))]
    faiss = 'is not installed: pip install "aoq[cpu]", or "aoq[gpu]"'
    if has_faiss():
        count = gpus()
        faiss = f"{load_faiss().__version__} on CPU" + (f", {count} GPU{'s' if count > 1 else ''}" if count else "")
    echo(f"aoq {version('aoq')}\nPython {platform.python_version()}")
    echo(f"torch {torch.__version__} on {', '.join(devices)}\nFAISS {faiss}")
    context.exit()


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_versions,
    help="Show the versions and devices of aoq, Python, torch and FAISS.",
)
def main() -> None:
    """Offline hard negatives for image-text retrieval.

    \b
    aoq run demo                    both rounds on demo data
    aoq mine IMAGES CAPTIONS TABLE  a table from your vectors
    aoq inspect TABLE --image 17    its hardest negatives

    Where a command takes TABLE, give an experiment or a table's folder.
    """
    from aoq.pipeline.console import log_to_console, stop_on_signals
    from aoq.pipeline.settings import read_shipped_settings  # Luigi's, which help does not need

    gc.set_threshold(50_000)  # collecting garbage while torch is imported, and all of torch at exit, takes a second
    atexit.register(gc.freeze)
    read_shipped_settings()
    log_to_console()
    stop_on_signals()
