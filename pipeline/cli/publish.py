"""`aoq publish`: a table as others get it."""

from __future__ import annotations

from pathlib import Path
from shlex import quote

import click

from aoq.pipeline.cli.ids import read_ids
from aoq.pipeline.cli.looking import Looked, takes_tables
from aoq.pipeline.cli.options import PATH, caption_ids, data, image_ids, roots, split
from aoq.pipeline.cli.output import echo, echo_next


@click.command()
@takes_tables("table")
@click.argument("output", type=PATH)
@click.option("--view", type=PATH, help="A view made by `aoq screen`, to go along.")
@data
@split
@image_ids
@caption_ids
@click.option("--license", "licence", help="For the data card, as the hub names it: cc-by-4.0, mit, …")
@roots
def publish(
    table: Looked,
    output: Path,
    view: Path | None,
    data: Path | None,
    split: str,
    image_ids: str | None,
    caption_ids: str | None,
    licence: str | None,
) -> None:
    """Write a table with a data card.

    TABLE is an experiment or a table's folder. It is checked and written to the new folder OUTPUT, with flags (--view),
    ids and a README.md as the Hugging Face hub wants it; without pictures and texts. OUTPUT is a table, for all
    commands. --data is compared with the table: other data, or another order, is refused.

    \b
    hf upload YOU/NAME OUTPUT --repo-type dataset
    """
    from aoq.pipeline.tables.exchange.publishing import publish_table
    from aoq.pipeline.tables.writing import made_whole

    if data is not None and image_ids is not None:
        raise click.UsageError("--data has image ids; leave out --image-ids")
    opened = table.captioned(data, split)
    ids = opened.ids if opened is not None else None
    ids = read_ids(image_ids) if image_ids is not None else ids
    other = read_ids(caption_ids) if caption_ids is not None else None
    with made_whole(output) as made:
        files = publish_table(table.folder, made, view=view, image_ids=ids, caption_ids=other, licence=licence)
    echo(f"{output}: {', '.join(files)}")
    echo_next(f"hf upload YOU/NAME {quote(str(output))} --repo-type dataset")
