"""`aoq report`: the page about runs, of what is there."""

from __future__ import annotations

from pathlib import Path
from shlex import quote

import click

from aoq.pipeline.artifact import write_atomically
from aoq.pipeline.cli.experiment import roots
from aoq.pipeline.planning.report import SEPARATOR, plan_report


@click.command()
@click.argument("runs", nargs=-1, required=True)
@click.option(
    "--output", "-o", default="report.html", show_default=True, type=click.Path(dir_okay=False, path_type=Path)
)
@roots
def report(runs: tuple[str, ...], output: Path, folders: dict[str, Path]) -> None:
    """Write one HTML page about RUNS.

    Each is an experiment, with an override after @ if need be; nothing is trained for the page.
    `luigi --module tasks Report --runs "demo; demo@seed=1"` makes all it takes.
    """
    from aoq.pipeline.produce.report import render_report

    planned = plan_report(SEPARATOR.join(runs), **folders)
    if not output.parent.is_dir():
        raise FileNotFoundError(f"{output.parent} does not exist; make it, or choose another --output.")
    write_atomically(output, render_report(planned).encode())
    click.echo(str(output))
    if missing := [name for name, chain in planned.named if not chain["evaluation"].exists()]:
        command = f"luigi --module tasks Report --runs {quote(f'{SEPARATOR} '.join(runs))}"
        click.echo(f"not evaluated yet: {', '.join(missing)}; {command}", err=True)
