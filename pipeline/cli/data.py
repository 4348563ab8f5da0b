"""`aoq data check`: everything that is wrong with a dataset folder, at once."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from aoq.pipeline.cli.output import echo

split_option = click.option("--split", default="testall", show_default=True, help="The split with COCO's test images.")


@click.group()
def data() -> None:
    """Check or annotate dataset folders."""


@data.command()
@click.argument("folder", type=click.Path(path_type=Path))
def check(folder: Path) -> None:
    """Verify every split of FOLDER and say everything that is wrong; exit code 1 if anything is."""
    from aoq.pipeline.data.check import check_folder

    flaws = check_folder(folder)
    for flaw in flaws:
        echo(flaw)
    errors = sum(flaw.severity == "error" for flaw in flaws)
    if errors:
        echo(f"{errors} errors, {len(flaws) - errors} warnings", err=True)
        sys.exit(1)
    echo(f"{folder} is sound" + (f", with {len(flaws)} warnings" if flaws else ""))


@data.command()
@click.argument("folder", type=click.Path(path_type=Path))
@split_option
def relevance(folder: Path, split: str) -> None:
    """Write which answers ECCV Caption and CxC call right beside a split of FOLDER; evaluations then measure them.

    Needs the extra: pip install "aoq[eccv]".
    """
    from aoq.pipeline.data.coco import write_coco_relevance
    from aoq.pipeline.data.folder import open_split

    for path in write_coco_relevance(folder, open_split(folder, split)):
        echo(path)


@data.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.argument("instances", type=click.Path(path_type=Path))
@split_option
def classes(folder: Path, instances: Path, split: str) -> None:
    """Write what INSTANCES (COCO's instances_val2014.json) show beside a split of FOLDER; evaluations then give PMRP.

    Needs the extra: pip install "aoq[eccv]".
    """
    from aoq.pipeline.data.coco import write_coco_classes
    from aoq.pipeline.data.folder import open_split

    echo(write_coco_classes(folder, open_split(folder, split), instances))
