"""`aoq inspect`: the top-h list of an image or a caption."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.table import Column

from aoq.pipeline.cli.options import COUNT, as_json, roots, with_default
from aoq.pipeline.cli.output import echo_json, say, show_rows, styled
from aoq.pipeline.cli.table_options import NamedTable, RowFiles, own_view, row_options, takes_tables
from aoq.pipeline.config.screen import RULES
from aoq.pipeline.search.problem import Direction
from aoq.pipeline.tables.contents import ShownRows, TableRows
from aoq.pipeline.tables.table import NegativeTable

if TYPE_CHECKING:
    from aoq.pipeline.tables.inspection import Inspection


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
@row_options("texts", "image_ids", "caption_ids")
@as_json
@roots
def inspect(
    table: NamedTable,
    image: str | None,
    caption: str | None,
    direction: Direction | None,
    top: int,
    view: Path | None,
    only: str,
    files: RowFiles,
    as_json: bool,
) -> None:
    """Show an anchor's hardest negatives.

    TABLE is an experiment or a table's folder. Shown is the list of an image or a caption, and its own positives. Texts
    and ids are the experiment's; for a folder they are those that are given, or the ids that are kept beside it.

    `--image X --direction t2i` shows the lists of the image's captions, `--caption N --direction i2t` that of the
    caption's image.
    """
    from aoq.pipeline.tables.inspection import inspect_anchor

    if (image is None) == (caption is None):
        raise click.UsageError("name one anchor: --image ROW_OR_ID or --caption ROW_OR_ID")
    read, split = table.read(), table.split()
    known = TableRows(read, *files.read(split))
    rows: ShownRows = known if split is None else split
    screened = table.read_view(view, or_own=True)
    if only and screened is None:
        raise ValueError("--only needs a view: the experiment's own screen, if it was made, or --view FOLDER")
    chosen, anchors = _anchors(read, rows, known.named, image, caption, direction)
    store = table.embeddings()
    lists = [inspect_anchor(read, rows, chosen, one, top, store, screened, only, known.named) for one in anchors]
    if as_json:
        echo_json([asdict(one) for one in lists])
        return
    for one in lists:
        _show(one, is_one_set=read.is_one_set)


def _anchors(
    table: NegativeTable,
    rows: ShownRows,
    caption_ids: Sequence[str],
    image: str | None,
    caption: str | None,
    direction: Direction | None,
) -> tuple[Direction, list[int]]:
    """Return the direction of the lists to show, and their rows."""
    if table.is_one_set and (caption is not None or direction == "t2i"):
        raise click.UsageError("the table is of one set, whose items are --image ROW_OR_ID, in the direction i2t")
    if caption is None:
        row = _row("image", str(image), rows.ids, len(table.i2t))
        return direction or "i2t", rows.captions_of[row].tolist() if direction == "t2i" else [row]
    row = _row("caption", caption, caption_ids, len(table.t2i))
    if direction == "i2t" and rows.image_of[row] < 0:
        raise ValueError(f"caption {caption} is of no image that could have a list; leave out --direction.")
    return direction or "t2i", [int(rows.image_of[row]) if direction == "i2t" else row]


def _row(noun: str, named: str, ids: Sequence[str], count: int) -> int:
    if named in ids:
        return ids.index(named)
    if not named.isdecimal() or int(named) >= count:
        like = f"ids look like {ids[0]!r}" if ids else f"{noun}s have no ids here; give them as --{noun}-ids"
        raise ValueError(f"{noun} {named!r} is neither an id nor a row; rows are 0 to {count - 1}, {like}.")
    return int(named)


def _show(one: Inspection, *, is_one_set: bool) -> None:
    anchor = f"{'item' if is_one_set else 'image'} {one.anchor} ({one.image_id})"
    if one.direction == "t2i":
        parts = (f"caption {one.anchor}", one.caption_id and f"({one.caption_id})", one.text and f"“{one.text}”")
        anchor = " ".join(filter(None, parts)) + (f", of image {one.image_id}" if one.image_id else ", of no image")
    say((anchor, "bold"), f", {one.direction}")
    _show_positives(one)
    has_ids, has_text = any(each.caption_id for each in one.negatives), any(each.text for each in one.negatives)
    has_ids, is_fused = has_ids and not is_one_set, any(each.sources for each in one.negatives)
    columns: list[str | Column] = ["rank", "score", "row", Column("item" if is_one_set else "image", overflow="fold")]
    columns += [*["caption id"] * has_ids, *["listed by"] * is_fused]
    rows = []
    for each in one.negatives:
        marks = ", ".join(filter(None, (each.duplicate, *each.flags)))
        score = styled(f"{each.score:.4f}", ("▲", "red") if each.above_positive else " ")
        row: list[Any] = [str(each.rank), score, str(each.row), each.image_id]
        row += [*[each.caption_id] * has_ids, *[" ".join(each.sources)] * is_fused]
        rows.append([*row, styled((f"({marks}) " if marks else "", "yellow"), each.text)])
    show_rows([*columns, "" if not has_text else "text" if is_one_set else "caption"], rows)
    if any(each.above_positive for each in one.negatives):
        say("▲ at least as similar as one of its own", style="dim")
    say()


def _show_positives(one: Inspection) -> None:
    say("its own:" if one.positives else "it has none of its own", style="green")
    for positive in one.positives:
        name = positive.text or positive.caption_id or f"row {positive.row}"
        place = f"would be rank {positive.rank}" if positive.rank else f"would be beyond rank {one.h}"
        score = "" if positive.score is None else f"{positive.score:.4f}  {place}  "
        say(f"  {score}{'image ' if one.direction == 't2i' else ''}{name}", style="green")
    if one.positives and one.positives[0].score is None and one.lowest_positive_score is not None:
        say(f"  the least similar of them scores {one.lowest_positive_score:.4f}", style="green")
