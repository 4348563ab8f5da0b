"""The `aoq` command: look at tables, artefacts and data."""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from copy import copy
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click

from aoq.pipeline.cli.artifacts import explain, gc, status, verify
from aoq.pipeline.cli.batches import batches
from aoq.pipeline.cli.checkpoint import import_checkpoint
from aoq.pipeline.cli.data import data
from aoq.pipeline.cli.embed import embed
from aoq.pipeline.cli.estimate import estimate
from aoq.pipeline.cli.exchange import export, import_table
from aoq.pipeline.cli.inspect import inspect
from aoq.pipeline.cli.mine import mine
from aoq.pipeline.cli.output import echo
from aoq.pipeline.cli.pages import browse, report
from aoq.pipeline.cli.prepare import prepare
from aoq.pipeline.cli.publish import publish
from aoq.pipeline.cli.results import results
from aoq.pipeline.cli.tables import audit, diff, drift, screen, stats
from aoq.pipeline.cli.to_judge import to_judge
from aoq.pipeline.settings import log_to_console, read_shipped_settings
from aoq.pipeline.terminal import escape_what_the_terminal_lacks, visible


class _Group(click.Group):
    """Mistakes of input end as one line and exit code 1; bugs keep their traceback."""

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
    """What click says of wrong arguments, which it prints itself."""
    try:
        yield
    except click.ClickException as error:
        vars(error)["message"] = visible(error.message)  # click types it as final
        raise


def _show_versions(context: click.Context, _: click.Parameter, asked: bool) -> None:
    """A line each for aoq, Python, torch and FAISS, with the devices that the latter two compute on."""
    if not asked or context.resilient_parsing:
        return
    import torch  # not above: all other commands start without it

    from aoq.pipeline.search.brute_force import gpus, has_faiss, load_faiss

    devices = [_processor(), *map(torch.cuda.get_device_name, range(torch.cuda.device_count()))]
    faiss = 'is not installed: pip install "aoq[cpu]", or "aoq[gpu]"'
    if has_faiss():
        seen = gpus()
        faiss = f"{load_faiss().__version__} on CPU" + (f", {seen} GPU{'s' if seen > 1 else ''}" if seen else "")
    echo(f"aoq {version('aoq')}\nPython {platform.python_version()}")
    echo(f"torch {torch.__version__} on {', '.join(devices)}\nFAISS {faiss}")
    context.exit()


def _processor() -> str:
    """Name the processor as Linux does; elsewhere its architecture."""
    named = None
    with suppress(OSError):
        named = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    return f"CPU ({named[1].strip() if named else platform.machine()})"


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_versions,
    help="Show the versions and devices of aoq, Python, torch and FAISS.",
)
def main() -> None:
    """Offline hard negatives for image-text retrieval: look at what the pipeline made.

    Things are made by Luigi: luigi --module tasks SecondRound --experiment NAME
    """
    read_shipped_settings()
    log_to_console()


TO_SCREEN = (to_judge, screen)
OF_TABLES = (
    estimate,
    mine,
    *TO_SCREEN,
    inspect,
    browse,
    audit,
    stats,
    diff,
    drift,
    batches,
    export,
    import_table,
    publish,
)
for command in (prepare, embed, *OF_TABLES, results, report, status, explain, verify, gc, data, import_checkpoint):
    main.add_command(command)

plan = copy(estimate)  # the command's old name
plan.hidden = True
main.add_command(plan, "plan")
