"""`aoq embed`: vectors of photographs and captions by a pretrained encoder."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from aoq.pipeline.cli.options import PATH, cluster_options, split, with_default
from aoq.pipeline.cli.output import echo, echo_next
from aoq.pipeline.data.folder import open_split
from aoq.pipeline.progress import show_progress
from aoq.pipeline.scratch import publish, scratch_beside

BLOCKS = "blocks"


@click.command()
@click.argument("folder", type=PATH)
@click.argument("output", type=PATH)
@click.option("--encoder", "name", required=True, help="Such as transformers:openai/clip-vit-base-patch32.")
@split
@with_default("--device", default="auto", help="auto, cpu or cuda.")
@with_default("--threads", default=0, type=click.IntRange(min=0), help="0: as many as this process may use.")
@cluster_options("Who encodes. With ray, --threads (0: one) is for one unit, and many run at a time.")
def embed(
    folder: Path, output: Path, name: str, split: str, device: str, threads: int, backend: str, ray_address: str
) -> None:
    """Embed images and captions.

    FOLDER is a dataset folder of `aoq prepare`; the new folder OUTPUT gets images.npy and captions.npy: unit vectors
    by an encoder whose two towers share a space, one row an image or caption, in the folder's order. The encoder is
    transformers:NAME, open_clip:NAME/TAG or sentence-transformers:NAME; a path works as a name. `aoq mine` takes the
    two files, and

    \b
      [teacher]
      encoder = "transformers:NAME"

    does the same inside an experiment, in place of a first round. A run that was cut short goes on where it was.
    """
    from aoq.pipeline.embedding_blocks import finish_embeddings
    from aoq.pipeline.engine import Engine
    from aoq.pipeline.prepare.encoders import open_encoder
    from aoq.pipeline.prepare.photographs import open_photographs
    from aoq.pipeline.produce.encoding import Encoding, write_encoded

    engine = Engine(device, threads, backend=backend, ray_address=ray_address)
    if output.exists():
        raise ValueError(f"{output} is there already; choose another name.")
    opened = open_split(folder, split)
    photographs = open_photographs(folder, split, opened.image_count)
    engine.torch_device()
    encoder = open_encoder(name)
    encoding = Encoding(name, encoder, folder, split, photographs, opened.image_count, opened.captions)
    with scratch_beside(output, keep=_has_blocks) as scratch:
        made = scratch / encoding.key / output.name
        made.mkdir(parents=True, exist_ok=True)
        with show_progress("embedding") as report:
            write_encoded(encoding, made, scratch / BLOCKS, engine, report)
        finish_embeddings(made)
        publish(made, output)
    sizes = f"{opened.image_count:,} images and {opened.caption_count:,} captions"
    echo(f"{output}: {sizes}, {encoder.images.dims} numbers each, by {encoder.name}")
    vectors = (str(output / f"{side}.npy") for side in ("images", "captions"))
    echo_next(f"{shlex.join(['aoq', 'mine', *vectors])} TABLE --pairs PAIRS, or --per-image K")


def _has_blocks(scratch: Path) -> bool:
    """True if a next run can use what is there."""
    return any(scratch.glob("*/*/*.progress.json")) or any(scratch.glob(f"{BLOCKS}/*.unit"))
