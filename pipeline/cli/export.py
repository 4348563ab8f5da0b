"""`aoq export`: negative tables in other trainers' formats."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from aoq.pipeline.cli.vectors import open_sides

if TYPE_CHECKING:
    from aoq.pipeline.search.problem import Direction


@click.command()
@click.argument("table", type=click.Path(path_type=Path))
@click.argument("output", type=click.Path(path_type=Path))
@click.option("--format", "name", required=True, metavar="FORMAT", help="One of the formats above.")
@click.option("--direction", type=click.Choice(["i2t", "t2i"]), help="Anchors are images (i2t) or captions (t2i).")
@click.option("--num-negatives", type=click.IntRange(min=1), help="At most this many of each list; default: all.")
@click.option("--scores", is_flag=True, help="With scores, where the format has a place for them.")
@click.option("--data", type=click.Path(path_type=Path), help="The dataset folder that has the captions and image ids.")
@click.option("--split", default="train", show_default=True, help="Which of its splits.")
@click.option("--captions", type=click.Path(path_type=Path), help="A text file, one caption a line.")
@click.option("--image-ids", type=click.Path(path_type=Path), help="A text file, one id a line; default: row numbers.")
@click.option("--vectors", nargs=2, metavar="IMAGES CAPTIONS", help="What the table was mined from.")
@click.option("--view", type=click.Path(path_type=Path), help="A view made by `aoq screen`; leave out what it flags.")
def export(
    table: Path,
    output: Path,
    name: str,
    direction: Direction | None,
    num_negatives: int | None,
    scores: bool,
    data: Path | None,
    split: str,
    captions: Path | None,
    image_ids: Path | None,
    vectors: tuple[str, str] | None,
    view: Path | None,
) -> None:
    """Write the negative table in the folder TABLE to OUTPUT, in another trainer's format:

    \b
    triplet, n-tuple,         Parquet for sentence-transformers, with the columns
    labeled-pair,               of its mine_hard_negatives
    labeled-list
    pylate                    a folder of three Parquet tables
    flagembedding, tevatron   a JSON object a line
    trec                      a run: the negatives with their scores
    aoq                       the 2020 code's lists of both directions, in the
                                folder OUTPUT/ as i2t_OUTPUT.npy, t2i_OUTPUT.npy

    A caption goes by its text, an image by its id: from a dataset folder (--data), or from text files (--captions,
    --image-ids). Of an anchor's positives the table keeps the lowest score only; where there are several, scores of
    positives (--scores; pylate) need --vectors.
    """
    from aoq.pipeline.data.files import read_lines
    from aoq.pipeline.data.folder import open_split
    from aoq.pipeline.tables.exchange.formats import export_table, find_format
    from aoq.pipeline.tables.files import read_manifest
    from aoq.pipeline.tables.screens.view import read_view
    from aoq.pipeline.tables.writing import made_whole

    form = find_format(name)
    if form.both_directions and direction is not None:
        raise click.UsageError(f"{name} has both directions; leave out --direction")
    if not form.both_directions and direction is None:
        raise click.UsageError("say whose lists: --direction i2t (of images) or t2i (of captions)")
    if scores and form.scores in ("never", "of negatives"):
        raise click.UsageError(f"{name} has no place for positives' scores; leave out --scores")
    if vectors and not (scores or form.scores == "always"):
        raise click.UsageError("--vectors give the positives' scores; ask for them with --scores")
    if data is not None and (captions or image_ids):
        raise click.UsageError("--data has captions and image ids; leave out --captions and --image-ids")
    manifest = read_manifest(table)
    teacher = manifest.get("teacher", {})
    texts = None if captions is None else read_lines(captions)
    ids = None if image_ids is None else read_lines(image_ids)
    if data is not None:
        opened = open_split(data, split)
        texts, ids = opened.captions, opened.ids
    with made_whole(output) as made:
        normalise = bool(teacher.get("normalised"))
        written = export_table(
            table,
            made,
            name,
            direction=direction,
            num_negatives=num_negatives,
            scores=scores,
            captions=texts,
            image_ids=ids,
            vectors=open_sides(*vectors, made.parent, normalise=normalise) if vectors else None,
            view=None if view is None else read_view(view, manifest),
        )
    for one, about in written.items():
        lacking = "without a positive or with too few negatives"
        left_out = f"; {about.anchors_left_out} anchors are left out, {lacking}" if about.anchors_left_out else ""
        click.echo(f"{one}: {about.rows} rows{left_out}")
