"""`aoq audit`, `aoq stats` and `aoq diff`: negative tables as a whole."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table

from aoq.pipeline.cli.screen import show_counts

if TYPE_CHECKING:
    from aoq.pipeline.tables.statistics import Difference


@click.command()
@click.argument("table", type=click.Path(path_type=Path))
def audit(table: Path) -> None:
    """Check the negative table in the folder TABLE (runs/EXPERIMENT/hard_negatives/table); exit code 1 if it is wrong.

    Ids in range, no own positive, no repeats, order, finite scores, padding, lengths, the two directions against each
    other, certificates, and footer, manifest and content against each other.
    """
    from aoq.pipeline.tables.audit import audit as find_all

    findings = find_all(table)
    for finding in findings:
        click.echo(f"error: {finding}")
    if findings:
        click.echo(f"{len(findings)} checks fail; mine the table again", err=True)
        sys.exit(1)
    click.echo(f"{table} is sound")


@click.command()
@click.argument("table", type=click.Path(path_type=Path))
@click.option(
    "--view", type=click.Path(path_type=Path), help="A view made by `aoq screen`; count what its rules found as well."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def stats(table: Path, view: Path | None, as_json: bool) -> None:
    """Describe the table in the folder TABLE: scores, where the positives would rank, hubs, suspected true matches."""
    from aoq.pipeline.search.problem import DIRECTIONS, OTHER
    from aoq.pipeline.tables.screens.view import read_view
    from aoq.pipeline.tables.statistics import QUANTILES, describe
    from aoq.pipeline.tables.table import read_table

    read = read_table(table)
    described = {direction: describe(read[direction], len(read[OTHER[direction]])) for direction in DIRECTIONS}
    seen = None if view is None else read_view(view, read.manifest)
    if as_json:
        found: dict[str, dict[str, Any]] = {direction: asdict(one) for direction, one in described.items()}
        if seen is not None:
            for direction, counts in seen.manifest["directions"].items():
                found[direction]["screen"] = counts
        click.echo(json.dumps(found, indent=1))
        return
    console = Console()
    for direction, one in described.items():
        console.print(f"[bold]{direction}[/]: {one.anchors} lists of {one.h}, {one.full:.2%} full", highlight=False)
        rows = Table("", *(f"{quantile:.0%}" for quantile in QUANTILES), box=None, pad_edge=False)
        for name, values in (
            ("first score", one.first_score),
            ("last score", one.last_score),
            ("lowest positive's score", one.positive_score),
            ("lowest positive's rank", one.positive_rank),
        ):
            rows.add_row(name, *_cells(values))
        console.print(rows)
        above = (
            ""
            if one.above_positive is None
            else f"{one.above_positive:.2%} of the listed score at least as high as a positive; "
        )
        console.print(
            f"{above}{one.never_listed:.2%} of the candidates are in no list", highlight=False, soft_wrap=True
        )
        hubs = ", ".join(f"row {row} ({count})" for row, count in one.most_listed)
        console.print(f"in most lists: {hubs}", highlight=False, soft_wrap=True)
        console.print()
    if seen is not None:
        show_counts(seen)


@click.command()
@click.argument("table", type=click.Path(path_type=Path))
@click.argument("other", type=click.Path(path_type=Path))
@click.option("--depth", type=int, help="Compare up to this rank; default: as far as both go.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def diff(table: Path, other: Path, depth: int | None, as_json: bool) -> None:
    """Say how much the lists of the tables in the folders TABLE and OTHER have in common."""
    from aoq.pipeline.tables.statistics import compare
    from aoq.pipeline.tables.table import read_table

    found = compare(read_table(table), read_table(other), depth)
    if as_json:
        click.echo(json.dumps({direction: asdict(one) for direction, one in found.items()}, indent=1))
        return
    rows = Table("", "depth", "overlap", "rank-biased overlap", "same order", box=None, pad_edge=False)
    for direction, one in found.items():
        figures = (f"{value:.4f}" for value in (one.overlap, one.rank_biased_overlap, one.same_order))
        rows.add_row(direction, str(one.depth), *figures)
    Console().print(rows)
    show_most_changed(found)


def show_most_changed(found: Mapping[str, Difference]) -> None:
    for direction, one in found.items():
        changed = ", ".join(f"row {row} ({overlap:.2f})" for row, overlap in one.most_changed)
        Console().print(f"{direction}, least in common: {changed}", highlight=False, soft_wrap=True)


def _cells(values: Sequence[float] | None) -> list[str]:
    return ["-"] if values is None else [f"{value:.4g}" for value in values]
