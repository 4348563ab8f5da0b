"""`aoq screen`: judge a table's negatives by rules."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from pydantic import ValidationError
from rich.console import Console
from rich.table import Table

from aoq.pipeline.cli.output import made_whole
from aoq.pipeline.config.load import explain
from aoq.pipeline.config.screen import RULES, Screen

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Float32

    from aoq.pipeline.tables.screens.view import View

KINDS: dict[str, Any] = {
    **dict.fromkeys(("range_min", "range_max", "mutual_rank", "max_uses"), int),
    **dict.fromkeys(("positives", "pair_probabilities"), str),
}


def _rule_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """An option for every rule of [screen], and for the file that one of them reads."""
    for rule in reversed((*RULES, "pair_probabilities")):
        name, about = f"--{rule.replace('_', '-')}", Screen.model_fields[rule].description
        kind: dict[str, Any] = {"is_flag": True} if rule == "same_text" else {"type": KINDS.get(rule, float)}
        command = click.option(name, help=about, **kind)(command)
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
    from aoq.pipeline.data.clean_pairs import read_clean_pairs
    from aoq.pipeline.tables.screens.entries import Knowledge
    from aoq.pipeline.tables.screens.matches import read_matches
    from aoq.pipeline.tables.screens.view import judge, write_view
    from aoq.pipeline.tables.table import read_positives, read_table

    try:
        asked = Screen(**{rule: value for rule, value in rules.items() if value is not None})
    except ValidationError as error:
        raise ValueError(explain(Screen, error).removeprefix("the file: ")) from None
    judged = read_table(table)
    image_count, caption_count = len(judged.i2t), len(judged.t2i)
    with made_whole(output) as made:
        scratch, doubts = made.parent, asked.pair_probabilities
        knowledge = Knowledge(
            image_count,
            read_positives(table, image_count, caption_count),
            None if texts is None else _lines(texts, caption_count),
            None if images is None else _vectors(images, image_count, scratch / "images.npy", normalise),
            None if captions is None else _vectors(captions, caption_count, scratch / "captions.npy", normalise),
            None if asked.positives is None else read_matches(Path(asked.positives), image_count, caption_count),
            None if doubts is None else read_clean_pairs(Path(doubts), caption_count),
        )
        view = judge(judged, asked, knowledge)
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


def _lines(path: Path, count: int) -> list[str]:
    from aoq.pipeline.data.files import read_lines

    lines = read_lines(path)
    if len(lines) != count:
        raise ValueError(f"{path} has {len(lines)} lines, and the table is of {count} captions; give one line each.")
    return lines


def _vectors(given: str, count: int, copy: Path, normalise: bool) -> Float32[np.ndarray, "items D"]:
    from aoq.pipeline.search.vectors import check_vectors, open_vectors

    vectors = open_vectors(given, copy, normalise=normalise)
    if len(vectors) != count:
        raise ValueError(f"{given} has {len(vectors)} vectors, and the table is of {count}.")
    check_vectors(vectors, given, unit=True)
    return vectors
