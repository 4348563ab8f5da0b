"""`aoq prepare`: photographs and captions become a dataset folder."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import click

from aoq.pipeline.cli.options import COUNT, PATH, cluster_options, with_default
from aoq.pipeline.cli.output import echo, echo_next
from aoq.pipeline.progress import show_progress
from aoq.pipeline.scratch import publish, scratch_beside, writing_in

ABOUT = "prepared.json"


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
@with_default("--threads", default=0, type=click.IntRange(min=0), help="0: as many as this process may use.")
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
    from aoq.pipeline.engine import Engine
    from aoq.pipeline.prepare.prepare import prepare as fill
    from aoq.pipeline.prepare.request import Request
    from aoq.pipeline.prepare.sources.layout import Columns
    from aoq.pipeline.prepare.splits import read_sizes

    engine = Engine(device, threads, backend=backend, ray_address=ray_address)
    columns = Columns(image_column, caption_column, id_column, split_column)
    request = Request(source, columns=columns, sizes=read_sizes(split_sizes), thumbnails=thumbnails, **options)  # type: ignore[arg-type]
    with _parent_of(folder), scratch_beside(folder, keep=lambda scratch: _has_work(scratch, folder)) as scratch:
        made = scratch / folder.name
        if folder.exists() and not overwrite:
            raise ValueError(f"{folder} is there already; choose another name, or replace it by --overwrite.")
        if folder.exists() and not (folder / ABOUT).is_file():
            raise ValueError(f"{folder} was not made by aoq prepare, and is not replaced; choose another name.")
        with show_progress("preparing") as report:
            found = fill(request, made, scratch / "work", engine, batch=batch_size, report=report)
        publish(made, folder)
    for name, counts in found.splits.items():
        echo(f"{name}: {counts.images:,} images, {counts.captions:,} captions")
    extractor = found.extractor
    echo(f"{folder}: {extractor.tokens} × {extractor.dims} features an image by {extractor.name}")
    echo_next(shlex.join(["aoq", "data", "check", str(folder)]))


@contextmanager
def _parent_of(folder: Path) -> Iterator[None]:
    """Make the folder's parent (data/, say), and take it away where nothing came to lie there."""
    parent = folder.parent
    is_new = not parent.is_dir() and parent.parent.is_dir()
    if is_new:
        with writing_in(parent.parent):
            parent.mkdir()
    try:
        yield
    finally:
        if is_new:
            with suppress(OSError):  # it is not empty
                parent.rmdir()


def _has_work(scratch: Path, folder: Path) -> bool:
    """True if a next run can use what is there: the folder is not published yet."""
    return (scratch / "work").exists() and (scratch / folder.name).exists()
