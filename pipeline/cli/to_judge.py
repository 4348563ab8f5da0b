"""`aoq to-judge`: pairs of a table for an MLLM, or people, to judge."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from aoq.pipeline.cli.ids import read_ids
from aoq.pipeline.cli.looking import Looked, takes_tables, texts_of
from aoq.pipeline.cli.naming import typed
from aoq.pipeline.cli.options import COUNT, PATH, data, image_ids, refuse_beside_data, roots, split, texts, with_default
from aoq.pipeline.cli.output import counted, echo, echo_next


@click.command("to-judge")
@takes_tables("table")
@click.argument("output", type=PATH)
@with_default("--top", default=10, type=COUNT, help="Ask about this many of each list.")
@click.option("--view", type=PATH, help="A view made by `aoq screen`; ask only about what its rules suspect.")
@data
@split
@texts
@image_ids
@roots
def to_judge(
    table: Looked,
    output: Path,
    top: int,
    view: Path | None,
    data: Path | None,
    split: str,
    texts: Path | None,
    image_ids: str | None,
) -> None:
    """Write pairs for a judge to fill in.

    TABLE is an experiment or a table's folder. The new file OUTPUT (.csv, .tsv, .jsonl or .parquet) has each of its
    pairs once: image_id and caption_id, which are rows of the data, and similarity, the teacher's score. The columns
    image and caption are the image's id and the caption's text, of the experiment, of --data, or of --image-ids and
    --texts; without these they are the ids that are kept beside the table. In one set both go by --texts, or by ids.
    --data is compared with the table: other data, or another order, is refused. Add a column probability, from 0 to 1,
    that the two match; then:

    \b
    aoq screen TABLE VIEW --judgements OUTPUT

    Rows left empty are not judged. With --view, pairs that its judge or people have judged are not asked again.
    """
    from aoq.pipeline.tables.screens.to_judge import check_format, pairs_to_judge, write_pairs
    from aoq.pipeline.tables.screens.view import read_view
    from aoq.pipeline.tables.table import read_table
    from aoq.pipeline.tables.writing import made_whole

    refuse_beside_data(data, texts=texts, image_ids=image_ids)
    check_format(output)
    read = read_table(table.folder)
    if read.is_one_set and (data is not None or (texts and image_ids)):
        raise click.UsageError("the table is of one set, whose rows go by --texts or by --image-ids; give one of these")
    opened = table.captioned(data, split)
    captions = texts_of(texts, opened)
    ids: Sequence[str] | None = None if opened is None else opened.ids
    ids = ids if image_ids is None else read_ids(image_ids)
    for what, given, count in (("captions", captions, len(read.t2i)), ("image ids", ids, len(read.i2t))):
        if given is not None and len(given) != count:
            raise ValueError(f"{len(given)} {what} are given, and the table is of {count}; give one each.")
    with made_whole(output) as made:
        seen = None if view is None else read_view(view, read.manifest)
        pairs = pairs_to_judge(read, top=top, view=seen)
        if read.is_one_set:
            images = captions = captions or ids or read.ids.get("images")
        else:
            images, captions = ids or read.ids.get("images"), captions or read.ids.get("captions")
        write_pairs(made, pairs, images=images, captions=captions)
    echo(f"{output}: {counted(len(pairs), 'pair')}")
    echo_next(typed("aoq", "screen", table.asked, "VIEW", "--judgements", str(output)))
