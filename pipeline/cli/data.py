"""`aoq data`: check and annotate dataset folders."""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from pathlib import Path

import click

from aoq.pipeline.cli.options import PATH, as_json, with_default
from aoq.pipeline.cli.output import counted, echo, echo_json, echo_next

test_split = with_default("--split", default="testall", help="The split with COCO's test images.")


@click.group()
def data() -> None:
    """Check or annotate dataset folders."""


@data.command()
@click.argument("folder", type=PATH)
@as_json
def check(folder: Path, as_json: bool) -> None:
    """Check every split of a folder.

    Prints what each split of FOLDER holds, then everything that is wrong with it, at once. The exit code is 1 if
    anything is an error.
    """
    from aoq.pipeline.data.check import examine_folder
    from aoq.pipeline.data.findings import check_defaults, total

    examined, by_default = examine_folder(folder), [*check_defaults(folder)]
    flaws = [*examined.flaws, *(replace(flaw, severity="warning") for flaw in by_default)]
    errors, warnings = total(flaws, "error"), total(flaws, "warning")
    if as_json:
        echo_json({"folder": str(folder), "splits": [*map(asdict, examined.facts)], "flaws": [*map(asdict, flaws)]})
        sys.exit(bool(errors))
    for line in [*examined.facts, *flaws]:
        echo(line)
    if errors:
        echo(f"{counted(errors, 'error')}, {counted(warnings, 'warning')}", err=True)
        sys.exit(1)
    echo(f"{folder} is sound" + (f", with {counted(warnings, 'warning')}" if flaws else ""))
    if not total(by_default, "error"):
        echo_next(f'aoq run EXPERIMENT, a file with folder = "{folder.name}" in its [dataset]')


@data.command()
@click.argument("folder", type=PATH)
@test_split
def relevance(folder: Path, split: str) -> None:
    """Add what ECCV Caption and CxC call right.

    Their matches are written beside a split of FOLDER. Evaluations then measure by them.

    Needs the extra: pip install "aoq[eccv]".
    """
    from aoq.pipeline.data.annotations import write_coco_relevance
    from aoq.pipeline.data.folder import open_split

    for path in write_coco_relevance(folder, open_split(folder, split)):
        echo(path)


@data.command()
@click.argument("folder", type=PATH)
@click.argument("instances", type=PATH)
@test_split
def classes(folder: Path, instances: Path, split: str) -> None:
    """Add the objects of COCO's images.

    The objects in INSTANCES (COCO's instances_val2014.json) are written beside a split of FOLDER. Evaluations then give
    PMRP.

    Needs the extra: pip install "aoq[eccv]".
    """
    from aoq.pipeline.data.annotations import write_coco_classes
    from aoq.pipeline.data.folder import open_split

    echo(write_coco_classes(folder, open_split(folder, split), instances))
