"""`aoq embed`: vectors of photographs and captions by a pretrained encoder."""

from __future__ import annotations

from pathlib import Path

import click

from aoq.pipeline.cli.options import PATH, with_default
from aoq.pipeline.cli.output import echo
from aoq.pipeline.data.folder import open_split
from aoq.pipeline.progress import show_progress
from aoq.pipeline.scratch import publish, scratch_beside


@click.command()
@click.argument("folder", type=PATH)
@click.argument("output", type=PATH)
@click.option("--encoder", "name", required=True, help="Such as transformers:openai/clip-vit-base-patch32.")
@with_default("--split", default="train", help="Which of its splits.")
@with_default("--device", default="auto", help="auto, cpu or cuda.")
@with_default("--threads", default=0, type=click.IntRange(min=0), help="0: as many as this process may use.")
def embed(folder: Path, output: Path, name: str, split: str, device: str, threads: int) -> None:
    """Embed a prepared folder's photographs and captions.

    FOLDER is a dataset folder of `aoq prepare`; the new folder OUTPUT gets images.npy and captions.npy: unit vectors
    by an encoder whose two towers share a space, one row an image or caption, in the folder's order. The encoder is
    transformers:NAME, open_clip:NAME/TAG or sentence-transformers:NAME; a path works as a name. `aoq mine` takes the
    two files, and

    \b
      [teacher]
      encoder = "transformers:NAME"

    does the same inside an experiment, in place of a first round. A run that was cut short goes on where it was.
    """
    from aoq.pipeline.embedding import SIDES, finish_embeddings, write_embeddings
    from aoq.pipeline.engine import Engine
    from aoq.pipeline.prepare.encoders import open_encoder
    from aoq.pipeline.produce.photographs import encoded_sides, encoding_of, open_photographs

    if output.exists():
        raise ValueError(f"{output} is there already; choose another name.")
    opened = open_split(folder, split)
    photographs = open_photographs(folder, split, opened.image_count)
    chosen = Engine(device, threads).torch_device()
    encoder = open_encoder(name)
    job = encoding_of(folder, split, encoder)
    with scratch_beside(output, keep=lambda scratch: any(scratch.glob("*/*/*.progress.json"))) as scratch:
        made = scratch / job / output.name
        made.mkdir(parents=True, exist_ok=True)
        with show_progress("embedding") as report:
            sides = encoded_sides(photographs, opened.image_count, opened.captions, encoder, chosen)
            write_embeddings(sides, made, report)
        finish_embeddings(made)
        publish(made, output)
    sizes = " and ".join(f"{sides[side].count:,} {side}" for side in SIDES)
    echo(f"{output}: {sizes}, {encoder.images.dims} numbers each, by {encoder.name}")
