"""The `aoq` command: look at tables, artefacts and data."""

from __future__ import annotations

import sys
from copy import copy

import click

from aoq.pipeline.cli.artifacts import explain, gc, status, verify
from aoq.pipeline.cli.browse import browse
from aoq.pipeline.cli.checkpoint import import_checkpoint
from aoq.pipeline.cli.data import data
from aoq.pipeline.cli.drift import drift
from aoq.pipeline.cli.estimate import estimate
from aoq.pipeline.cli.export import export
from aoq.pipeline.cli.import_table import import_table
from aoq.pipeline.cli.inspect import inspect
from aoq.pipeline.cli.mine import mine
from aoq.pipeline.cli.report import report
from aoq.pipeline.cli.results import results
from aoq.pipeline.cli.screen import screen
from aoq.pipeline.cli.table import audit, diff, stats
from aoq.pipeline.cli.version import show_versions
from aoq.pipeline.settings import log_to_console, read_shipped_settings


class _Group(click.Group):
    """Mistakes of input end as one line and exit code 1; bugs keep their traceback."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except (ValueError, OSError, ImportError) as error:
            click.echo(f"error: {error}", err=True)
            sys.exit(1)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=show_versions,
    help="Show the versions and devices of aoq, Python, torch and FAISS.",
)
def main() -> None:
    """Offline hard negatives for image-text retrieval: look at what the pipeline made.

    Things are made by Luigi: luigi --module tasks SecondRound --experiment NAME
    """
    read_shipped_settings()
    log_to_console()


TABLES = (estimate, mine, screen, inspect, browse, audit, stats, diff, drift, export, import_table)
PIPELINE = (results, report, status, explain, verify, gc, data, import_checkpoint)
for command in (*TABLES, *PIPELINE):
    main.add_command(command)

plan = copy(estimate)  # the command's old name
plan.hidden = True
main.add_command(plan, "plan")
