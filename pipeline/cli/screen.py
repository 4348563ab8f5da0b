"""`aoq screen`: judge a table's negatives by rules."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click
from rich.console import Console
from rich.table import Table

from aoq.pipeline.cli.vectors import open_sides
from aoq.pipeline.config.screen import RULES, Screen

if TYPE_CHECKING:
    from aoq.pipeline.tables.screens.view import View


def _rule_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """An option for every rule of [screen], and for the file that one of them reads."""
    for rule in reversed((*RULES, "pair_probabilities")):
        name, about = f"--{rule.replace('_', '-')}", Screen.model_fields[rule].description
        given = (get_args(Screen.model_fields[rule].annotation) or (bool,))[0]  # of `int | None`, the int
        kind = getattr(given, "__origin__", given)
        command = click.option(name, help=about, **({"is_flag": True} if kind is bool else {"type": kind}))(command)
    return command


@click.command()
@click.argument("table", type=click.Path(path_type=Path))
@click.argument("output", type=click.Path(path_type=Path))
@_rule_options
@click.option("--texts", type=click.Path(path_type=Path), help="The captions, one a line.")
@click.option("--images", help="The images' vectors, as for `aoq mine`.")
@click.option("--captions", help="The captions' vectors.")
@click.option("--normalise", is_flag=True, help="Divide every vector by its norm first.")
def screen(
    table: Path,
    output: Path,
    texts: Path | None,
    images: str | None,
    captions: str | None,
    normalise: bool,
    **rules: Any,
) -> None:
    """Judge the negatives of the table in the folder TABLE by rules, and write what they say to the folder OUTPUT.

    The table stays as it is: OUTPUT is a view of it, with flags and a suspicion for every negative, which `aoq stats`,
    `aoq inspect` and `aoq export` take as --view. Experiments have a section [screen] instead, with the same rules.
    """
    from aoq.pipeline.data.files import read_lines
    from aoq.pipeline.tables.screens.view import write_view
    from aoq.pipeline.tables.table import read_table
    from aoq.pipeline.tables.writing import made_whole

    with made_whole(output) as made:
        vectors = open_sides(images, captions, made.parent, normalise=normalise)
        lines = None if texts is None else read_lines(texts)
        view = read_table(table).screen(texts=lines, **vectors, **rules).view
        write_view(view, made)
    show_counts(view)


def show_counts(view: View) -> None:
    """How many negatives each rule takes, of those that the rules before it leave, and meets altogether."""
    for direction, counts in view.manifest["directions"].items():
        rows = Table("", "meets", "takes", "left", box=None, pad_edge=False)
        left = counts["listed"]
        rows.add_row("listed", "", "", str(left))
        for rule, taken in counts["takes"].items():
            left -= taken
            rows.add_row(rule, str(counts["meets"][rule]), str(taken), str(left))
        console = Console()
        console.print(f"[bold]{direction}[/]: {counts['empty']} lists are left with none", highlight=False)
        console.print(rows)
