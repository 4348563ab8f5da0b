"""`aoq inspect`: the top-h list of an image or a caption."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.table import Table

from aoq.pipeline.cli.naming import to_make
from aoq.pipeline.cli.options import COUNT, PATH, as_json, experiment_chain, with_default
from aoq.pipeline.cli.output import Console, echo_json, styled
from aoq.pipeline.config.screen import RULES
from aoq.pipeline.data.folder import Split
from aoq.pipeline.planning.chain import Chain
from aoq.pipeline.search.problem import Direction

if TYPE_CHECKING:
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
@with_default("--top", default=10, type=COUNT, help="How many negatives.")
@click.option("--view", type=PATH, help="A view made by `aoq screen`; default: the experiment's own screen.")
@click.option(
    "--only", default="", type=click.Choice(["", "left", *RULES]), help="Those that meet a rule of the view, or none."
)
@as_json
def inspect(
    chain: Chain,
    image: str | None,
    caption: int | None,
    direction: Direction | None,
    top: int,
    view: Path | None,
    only: str,
    as_json: bool,
) -> None:
    """Show an anchor's hardest negatives.

    They are those of an image or a caption in EXPERIMENT's table, beside its own positives.

    `--image X --direction t2i` shows the lists of the image's captions, `--caption N --direction i2t` that of the
    caption's image.
    """
    from aoq.pipeline.embedding import EmbeddingStore
    from aoq.pipeline.produce.data import open_train_split
    from aoq.pipeline.tables.inspection import inspect_anchor
    from aoq.pipeline.tables.screens.view import read_view
    from aoq.pipeline.tables.table import read_table

    if (image is None) == (caption is None):
        raise click.UsageError("name one anchor: --image ROW_OR_ID or --caption ROW")
    if not chain["hard_negatives"].exists():
        raise ValueError(f"{chain.experiment.name} has no table yet; run: {to_make('hard_negatives')}")
    table = read_table(chain["hard_negatives"].opened() / "table")
    if view is None and "screen" in chain.stages and chain["screen"].exists():
        view = chain["screen"].opened() / "view"
    if only and view is None:
        raise ValueError("--only needs a view: the experiment's own screen, if it was made, or --view FOLDER")
    seen = None if view is None else read_view(view, table.manifest)
    split = open_train_split(chain)
    embeddings = chain.owner("hard_negatives").stages.get("embeddings")
    store = EmbeddingStore.open(embeddings.opened()) if embeddings and embeddings.exists() else None
    chosen, anchors = _anchors(split, image, caption, direction)
    found = [inspect_anchor(table, split, chosen, anchor, top, store, seen, only) for anchor in anchors]
    if as_json:
        echo_json([asdict(one) for one in found])
        return
    for one in found:
        _show(one)


def _anchors(
    split: Split, image: str | None, caption: int | None, direction: Direction | None
) -> tuple[Direction, list[int]]:
    if caption is None:
        row = _image_row(split, str(image))
        return direction or "i2t", split.captions_of[row].tolist() if direction == "t2i" else [row]
    if not 0 <= caption < split.caption_count:
        raise ValueError(f"caption {caption}: the split has captions 0 to {split.caption_count - 1}.")
    return direction or "t2i", [int(split.image_of[caption]) if direction == "i2t" else caption]


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
    of = f"image {one.anchor} ({one.image_id})"
    if one.direction == "t2i":
        of = f"caption {one.anchor} “{one.text}”, of image {one.image_id}"
    console.print(styled((of, "bold"), f", {one.direction}"))
    console.print("its own:", style="green")
    for positive in one.positives:
        console.print(f"  {_place(positive, one.h)}  {positive.text}", style="green")
    sources = ["listed by"] if any(negative.sources for negative in one.negatives) else []
    columns = ("rank", "score", "row", "image", *sources, "caption")
    table = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for negative in one.negatives:
        marks = ", ".join(filter(None, (negative.duplicate, *negative.flags)))
        mark = f"({marks}) " if marks else ""
        score = styled(f"{negative.score:.4f}", ("▲", "red") if negative.above_positive else " ")
        row = (str(negative.rank), score, str(negative.row), negative.image_id)
        listed = [" ".join(negative.sources)] if sources else []
        table.add_row(*row, *listed, styled((mark, "yellow"), negative.text))
    console.print_table(table)
    if any(negative.above_positive for negative in one.negatives):
        console.print("▲ at least as similar as one of its own", style="dim")
    console.print()


def _place(positive: Positive, h: int) -> str:
    if positive.score is None:
        return "?"
    place = f"would be rank {positive.rank}" if positive.rank else f"would be beyond rank {h}"
    return f"{positive.score:.4f}  {place}"
