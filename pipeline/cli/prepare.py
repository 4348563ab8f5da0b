"""`aoq prepare` and `aoq embed`: photographs and captions as a dataset folder, and an encoder's vectors of them."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import click

from aoq.pipeline.cli.options import COUNT, PATH, cluster_options, split, threads, with_default
from aoq.pipeline.cli.output import echo, echo_next
from aoq.pipeline.console import show_progress
from aoq.pipeline.data.folder import open_split
from aoq.pipeline.engine import Engine
from aoq.pipeline.scratch import publish, scratch_beside, writing_in

ABOUT, BLOCKS = "prepared.json", "blocks"


@click.command()
@click.argument("source")
@click.argument("folder", type=PATH)
@click.option("--images", type=PATH, help="Where image paths start; default: SOURCE's folder.")
@click.option("--image-column", help="The column of images or their paths.")
@click.option("--caption-column", multiple=True, help="A column of captions; may be given several times.")
@click.option("--id-column", help="The column of ids; default: paths, or row numbers.")
@click.option("--split-column", help="The column that says train, dev or test.")
@click.option("--split-sizes", default="", help="Draw splits: dev=1000,test=1000; train is the rest.")
@with_default("--seed", default=0, type=click.IntRange(min=0), help="For drawing splits.")
@with_default("--restval", default="train", type=click.Choice(["train", "drop"]), help="Where COCO's restval goes.")
@with_default("--extractor", default="efficientnet-lite0", help="The encoder that makes features of an image.")
@with_default(
    "--tokens", default="patches", type=click.Choice(["patches", "pooled"]), help="All regions, or one vector."
)
@click.option("--skip-broken", is_flag=True, help="Leave out images that cannot be read.")
@click.option("--pack", is_flag=True, help="Keep the encoded images in the folder, too.")
@with_default("--thumbnails/--no-thumbnails", default=True, help="Small pictures, for pages.")
@with_default("--device", default="auto", help="auto, cpu or cuda.")
@with_default("--batch-size", default=32, type=COUNT, help="Images at a time.")
@threads
@cluster_options("Who extracts. With ray, --threads (0: one) is for one unit, and many run at a time.")
@click.option("--overwrite", is_flag=True, help="Replace FOLDER, if it was prepared before.")
def prepare(
    source: str,
    folder: Path,
    image_column: str | None,
    caption_column: tuple[str, ...],
    id_column: str | None,
    split_column: str | None,
    split_sizes: str,
    device: str,
    threads: int,
    batch_size: int,
    backend: str,
    ray_address: str,
    overwrite: bool,
    thumbnails: bool,
    **options: object,
) -> None:
    """Make a dataset of photographs.

    SOURCE is a table (.csv, .tsv, .jsonl, .parquet) with a column of images or their paths and one or several of
    captions; Karpathy's dataset_*.json; COCO's captions_*.json, or the folder of them; a Hugging Face data set (a saved
    folder, a folder of Parquet files, or hf:OWNER/NAME); webdataset's .tar shards; or a folder with train_ids.txt and
    train_caps.txt. FOLDER gets features, captions, pairs, boxes and thumbnails, and can be an experiment's [dataset].

    Give the same command again to resume a run that was cut short.
    """
    from aoq.pipeline.prepare.prepare import prepare_folder
    from aoq.pipeline.prepare.request import Request
    from aoq.pipeline.prepare.sources.records import Fields
    from aoq.pipeline.prepare.splits import read_sizes

    engine = Engine(device, threads, backend=backend, ray_address=ray_address)
    fields = Fields(image_column, caption_column, id_column, split_column)
    request = Request(source, fields=fields, sizes=read_sizes(split_sizes), thumbnails=thumbnails, **options)  # type: ignore[arg-type]
    with _parent_of(folder), scratch_beside(folder, keep=lambda scratch: _has_features(scratch, folder)) as scratch:
        made = scratch / folder.name
        if folder.exists() and not overwrite:
            raise ValueError(f"{folder} is there already; choose another name, or replace it by --overwrite.")
        if folder.exists() and not (folder / ABOUT).is_file():
            raise ValueError(f"{folder} was not made by aoq prepare, and is not replaced; choose another name.")
        with show_progress("preparing") as report:
            extractor, splits = prepare_folder(request, made, scratch / "work", engine, batch=batch_size, report=report)
        publish(made, folder)
    for name, counts in splits.items():
        echo(f"{name}: {counts['images']:,} images, {counts['captions']:,} captions")
    echo(f"{folder}: {extractor.tokens} × {extractor.dims} features an image by {extractor.name}")
    echo_next(shlex.join(["aoq", "data", "check", str(folder)]))


@contextmanager
def _parent_of(folder: Path) -> Iterator[None]:
    """Make the folder's parent, such as data/, and remove it if it stays empty."""
    parent = folder.parent
    is_new = not parent.is_dir() and parent.parent.is_dir()
    if is_new:
        with writing_in(parent.parent):
            parent.mkdir()
    try:
        yield
    finally:
        if is_new:
            with suppress(OSError):  # not empty
                parent.rmdir()


def _has_features(scratch: Path, folder: Path) -> bool:
    """Return whether the next run can resume: the folder is not published yet."""
    return (scratch / "work").exists() and (scratch / folder.name).exists()


@click.command()
@click.argument("folder", type=PATH)
@click.argument("output", type=PATH)
@click.option("--encoder", "name", required=True, help="Such as transformers:openai/clip-vit-base-patch32.")
@split
@with_default("--device", default="auto", help="auto, cpu or cuda.")
@threads
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
    from aoq.pipeline.stages.encoding import Encoding, write_encoded

    engine = Engine(device, threads, backend=backend, ray_address=ray_address)
    if output.exists():
        raise ValueError(f"{output} is there already; choose another name.")
    opened = open_split(folder, split)
    encoding = Encoding(name, folder, split, opened.image_count, opened.image_count, opened.captions)
    engine.torch_device()
    with scratch_beside(output, keep=_has_blocks) as scratch:
        made = scratch / encoding.key / output.name
        made.mkdir(parents=True, exist_ok=True)
        with show_progress("embedding") as report:
            write_encoded(encoding, made, scratch / BLOCKS, engine, report)
        finish_embeddings(made)
        publish(made, output)
    sizes = f"{opened.image_count:,} images and {opened.caption_count:,} captions"
    echo(f"{output}: {sizes}, {encoding.encoder.images.dims} numbers each, by {encoding.encoder.name}")
    vectors = (str(output / f"{side}.npy") for side in ("images", "captions"))
    echo_next(f"{shlex.join(['aoq', 'mine', *vectors])} TABLE --pairs PAIRS, or --per-image K")


def _has_blocks(scratch: Path) -> bool:
    """Return whether the next run can resume."""
    return any(scratch.glob("*/*/*.progress.json")) or any(scratch.glob(f"{BLOCKS}/*.unit"))
