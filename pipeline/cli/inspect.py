"""`aoq inspect`: the top-h list of an image or a caption."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from aoq.pipeline.cli.experiment import experiment_chain
from aoq.pipeline.config.screen import RULES
from aoq.pipeline.planning.chain import Chain

if TYPE_CHECKING:
    from aoq.pipeline.data.folder import Split
    from aoq.pipeline.tables.inspection import Inspection, Positive


@click.command()
@experiment_chain
@click.option("--image", help="An image, by row or by id.")
@click.option("--caption", type=int, help="A caption, by row (0 is the first line).")
@click.option(
    "--direction",
    type=click.Choice(["i2t", "t2i"]),
    help="Which lists: an image's captions (i2t) or a caption's images (t2i). Default: those of what you name.",
)
@click.option("--top", default=10, show_default=True, type=click.IntRange(min=1), help="How many negatives.")
@click.option(
    "--view", type=click.Path(path_type=Path), help="A view made by `aoq screen`; default: the experiment's own screen."
)
@click.option(
    "--only", default="", type=click.Choice(["", "left", *RULES]), help="Those that meet a rule of the view, or none."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def inspect(
    chain: Chain,
    image: str | None,
    caption: int | None,
    direction: Literal["i2t", "t2i"] | None,
    top: int,
    view: Path | None,
    only: str,
    as_json: bool,
) -> None:
    """Show the hardest negatives of an image or a caption in EXPERIMENT's table, beside its own positives.

    `--image X --direction t2i` shows the lists of the image's captions, `--caption N --direction i2t` that of the
    caption's image.
    """
    from aoq.pipeline.embedding import EmbeddingStore
    from aoq.pipeline.produce.inputs import open_train_split
    from aoq.pipeline.tables.inspection import inspect_anchor
    from aoq.pipeline.tables.screens.view import read_view
    from aoq.pipeline.tables.table import read_table

    if (image is None) == (caption is None):
        raise click.UsageError("name one anchor: --image ROW_OR_ID or --caption ROW")
    if not chain["hard_negatives"].exists():
        name = chain.experiment.name
        raise ValueError(f"{name} has no table yet; run: luigi --module tasks HardNegatives --experiment {name}")
    table = read_table(chain["hard_negatives"].path / "table")
    if view is None and "screen" in chain.stages and chain["screen"].exists():
        view = chain["screen"].path / "view"
    seen = None if view is None else read_view(view, table.manifest)
    if only and seen is None:
        raise ValueError("--only needs a view: the experiment's own screen, if it was made, or --view FOLDER")
    split = open_train_split(chain)
    embeddings = chain.owner("hard_negatives").stages.get("embeddings")
    store = EmbeddingStore.open(embeddings.path) if embeddings and embeddings.exists() else None
    chosen, anchors = _anchors(split, image, caption, direction)
    found = [inspect_anchor(table, split, chosen, anchor, top, store, seen, only) for anchor in anchors]
    if as_json:
        click.echo(json.dumps([asdict(one) for one in found], indent=1, ensure_ascii=False))
        return
    for one in found:
        _show(one)


def _anchors(
    split: Split, image: str | None, caption: int | None, direction: Literal["i2t", "t2i"] | None
) -> tuple[Literal["i2t", "t2i"], list[int]]:
    if caption is not None:
        if not 0 <= caption < split.caption_count:
            raise ValueError(f"caption {caption}: the split has captions 0 to {split.caption_count - 1}.")
        return (direction or "t2i"), [int(split.image_of[caption]) if direction == "i2t" else caption]
    row = _image_row(split, str(image))
    if direction == "t2i":
        return "t2i", split.captions_of[row].tolist()
    return "i2t", [row]


def _image_row(split: Split, image: str) -> int:
    if image in split.ids:
        return split.ids.index(image)
    if not image.isdecimal() or int(image) >= split.image_count:
        raise ValueError(
            f"image {image!r} is neither an id nor a row; rows are 0 to {split.image_count - 1}, "
            f"ids look like {split.ids[0]!r}."
        )
    return int(image)


def _show(one: Inspection) -> None:
    console = Console()
    of = f"image {one.anchor} ({escape(one.image_id)})"
    if one.direction == "t2i":
        of = f"caption {one.anchor} “{escape(one.text)}”, of image {escape(one.image_id)}"
    console.print(f"[bold]{of}[/bold], {one.direction}", highlight=False)
    console.print("its own:", style="green")
    for positive in one.positives:
        console.print(f"  {_place(positive, one.h)}  {escape(positive.text)}", highlight=False, style="green")
    sources = ["listed by"] if any(negative.sources for negative in one.negatives) else []
    columns = ("rank", "score", "row", "image", *sources, "caption")
    table = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for negative in one.negatives:
        marks = [*filter(None, [negative.duplicate]), *negative.flags]
        mark = f"[yellow]({', '.join(marks)})[/] " if marks else ""
        above = "[red]▲[/]" if negative.above_positive else " "
        row = (str(negative.rank), f"{negative.score:.4f}{above}", str(negative.row), escape(negative.image_id))
        listed = [escape(" ".join(negative.sources))] if sources else []
        table.add_row(*row, *listed, mark + escape(negative.text))
    console.print(table)
    if any(negative.above_positive for negative in one.negatives):
        console.print("▲ at least as similar as one of its own", style="dim")
    console.print()


def _place(positive: Positive, h: int) -> str:
    if positive.score is None:
        return "?"
    place = f"would be rank {positive.rank}" if positive.rank else f"would be beyond rank {h}"
    return f"{positive.score:.4f}  {place}"
