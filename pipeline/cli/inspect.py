"""`aoq inspect`: the top-h list of an image or a caption."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.table import Column, Table

from aoq.pipeline.cli.looking import Looked, takes_tables, teachers_vectors, texts_of
from aoq.pipeline.cli.options import COUNT, as_json, caption_ids, image_ids, own_view, roots, texts, with_default
from aoq.pipeline.cli.output import Console, echo_json, styled
from aoq.pipeline.config.screen import RULES
from aoq.pipeline.search.problem import Direction

if TYPE_CHECKING:
    from aoq.pipeline.tables.inspection import Inspection, Positive
    from aoq.pipeline.tables.own_rows import Rows, TableRows
    from aoq.pipeline.tables.table import NegativeTable


@click.command()
@takes_tables("table")
@click.option("--image", help="An image, by row or by id; in one set, an item.")
@click.option("--caption", help="A caption, by row (0 is the first line) or by id.")
@click.option(
    "--direction",
    type=click.Choice(["i2t", "t2i"]),
    help="Which lists: an image's captions (i2t) or a caption's images (t2i). Default: those of what you name.",
)
@with_default("--top", default=10, type=COUNT, help="How many negatives.")
@own_view
@click.option(
    "--only",
    default="",
    type=click.Choice(["", "left", *RULES]),
    metavar="RULE",
    help="Negatives that this rule of the view flags, such as same_text; left: those that no rule flags.",
)
@texts
@image_ids
@caption_ids
@as_json
@roots
def inspect(
    table: Looked,
    image: str | None,
    caption: str | None,
    direction: Direction | None,
    top: int,
    view: Path | None,
    only: str,
    texts: Path | None,
    image_ids: str | None,
    caption_ids: str | None,
    as_json: bool,
) -> None:
    """Show an anchor's hardest negatives.

    TABLE is an experiment or a table's folder. Shown is the list of an image or a caption, and its own positives. Texts
    and ids are the experiment's; for a folder they are those that are given, or the ids that are kept beside it.

    `--image X --direction t2i` shows the lists of the image's captions, `--caption N --direction i2t` that of the
    caption's image.
    """
    from aoq.pipeline.cli.ids import read_ids
    from aoq.pipeline.tables.inspection import inspect_anchor
    from aoq.pipeline.tables.own_rows import TableRows
    from aoq.pipeline.tables.screens.view import read_view
    from aoq.pipeline.tables.table import read_table

    if (image is None) == (caption is None):
        raise click.UsageError("name one anchor: --image ROW_OR_ID or --caption ROW_OR_ID")
    read, split = read_table(table.folder), table.split()
    given = (None if ids is None else read_ids(ids) for ids in (image_ids, caption_ids))
    known = TableRows(read, texts_of(texts, split), *given)
    rows: Rows = known if split is None else split
    view = table.view(view)
    if only and view is None:
        raise ValueError("--only needs a view: the experiment's own screen, if it was made, or --view FOLDER")
    seen = None if view is None else read_view(view, read.manifest)
    chosen, anchors = _anchors(read, rows, known.named, image, caption, direction)
    store = teachers_vectors(table.chain) if table.chain else None
    found = [inspect_anchor(read, rows, chosen, one, top, store, seen, only, known.named) for one in anchors]
    if as_json:
        echo_json([asdict(one) for one in found])
        return
    for one in found:
        _show(one, known)


def _anchors(
    table: NegativeTable,
    rows: Rows,
    named: Sequence[str],
    image: str | None,
    caption: str | None,
    direction: Direction | None,
) -> tuple[Direction, list[int]]:
    if table.is_one_set and (caption is not None or direction == "t2i"):
        raise click.UsageError("the table is of one set, whose items are --image ROW_OR_ID, in the direction i2t")
    if caption is None:
        row = _row("image", str(image), rows.ids, len(table.i2t))
        return direction or "i2t", rows.captions_of[row].tolist() if direction == "t2i" else [row]
    row = _row("caption", caption, named, len(table.t2i))
    if direction == "i2t" and rows.image_of[row] < 0:
        raise ValueError(f"caption {caption} is of no image that could have a list; leave out --direction.")
    return direction or "t2i", [int(rows.image_of[row]) if direction == "i2t" else row]


def _row(what: str, given: str, ids: Sequence[str], count: int) -> int:
    if given in ids:
        return ids.index(given)
    if not given.isdecimal() or int(given) >= count:
        like = f"ids look like {ids[0]!r}" if ids else f"{what}s have no ids here; give them as --{what}-ids"
        raise ValueError(f"{what} {given!r} is neither an id nor a row; rows are 0 to {count - 1}, {like}.")
    return int(given)


def _show(one: Inspection, known: TableRows) -> None:
    console, one_set = Console(), known.table.is_one_set
    of = f"{'item' if one_set else 'image'} {one.anchor} ({one.image_id})"
    if one.direction == "t2i":
        said = (f"caption {one.anchor}", one.caption_id and f"({one.caption_id})", one.text and f"“{one.text}”")
        of = " ".join(filter(None, said)) + (f", of image {one.image_id}" if one.image_id else ", of no image")
    console.print(styled((of, "bold"), f", {one.direction}"))
    _show_positives(console, one)
    has_ids, is_fused = any(each.caption_id for each in one.negatives), any(each.sources for each in one.negatives)
    has_text = any(each.text for each in one.negatives)
    image = Column("item" if one_set else "image", overflow="fold")
    columns: list[str | Column] = ["rank", "score", "row", image, *(["caption id"] * (has_ids and not one_set))]
    table = Table(*columns, box=None, pad_edge=False, header_style="bold")
    if is_fused:
        table.add_column("listed by")
    table.add_column("" if not has_text else "text" if one_set else "caption")
    for negative in one.negatives:
        marks = ", ".join(filter(None, (negative.duplicate, *negative.flags)))
        mark = f"({marks}) " if marks else ""
        score = styled(f"{negative.score:.4f}", ("▲", "red") if negative.above_positive else " ")
        row = [styled(str(negative.rank)), score, styled(str(negative.row)), styled(negative.image_id)]
        row += [styled(negative.caption_id)] * (has_ids and not one_set)
        row += [styled(" ".join(negative.sources))] * is_fused
        table.add_row(*row, styled((mark, "yellow"), negative.text))
    console.print_table(table)
    if any(negative.above_positive for negative in one.negatives):
        console.print("▲ at least as similar as one of its own", style="dim")
    console.print()


def _show_positives(console: Console, one: Inspection) -> None:
    console.print("its own:" if one.positives else "it has none of its own", style="green")
    for positive in one.positives:
        said = positive.text or positive.caption_id or f"row {positive.row}"
        said = f"image {said}" if one.direction == "t2i" else said
        console.print(f"  {_place(positive, one.h)}{said}", style="green")
    if one.positives and one.positives[0].score is None and one.lowest_positive_score is not None:
        console.print(f"  the least similar of them scores {one.lowest_positive_score:.4f}", style="green")


def _place(positive: Positive, h: int) -> str:
    if positive.score is None:
        return ""
    place = f"would be rank {positive.rank}" if positive.rank else f"would be beyond rank {h}"
    return f"{positive.score:.4f}  {place}  "
