"""`aoq data check`: everything that is wrong with a dataset folder, at once."""

from __future__ import annotations

import sys
from pathlib import Path

import click


@click.group()
def data() -> None:
    """Look at dataset folders."""


@data.command()
@click.argument("folder", type=click.Path(path_type=Path))
def check(folder: Path) -> None:
    """Verify every split of FOLDER and say everything that is wrong; exit code 1 if anything is."""
    from pipeline.data.check import check_folder

    problems = check_folder(folder)
    for problem in problems:
        click.echo(str(problem))
    errors = sum(problem.severity == "error" for problem in problems)
    if errors:
        click.echo(f"{errors} errors, {len(problems) - errors} warnings", err=True)
        sys.exit(1)
    click.echo(f"{folder} is sound" + (f", with {len(problems)} warnings" if problems else ""))
