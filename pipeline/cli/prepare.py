"""`aoq prepare`, `embed` and `data`: make a dataset folder from photographs; embed, check and annotate it."""

from __future__ import annotations

import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from aoq.pipeline.cli.options import PATH, POSITIVE, as_json, cluster_options, split, threads, with_default
from aoq.pipeline.cli.output import counted, echo, echo_json, echo_next
from aoq.pipeline.console import show_progress
from aoq.pipeline.data.folder import PREPARED, changed_files, open_split
from aoq.pipeline.engine import Engine
from aoq.pipeline.files import replace_output, scratch_beside, writing_in
from aoq.pipeline.tables.writing import made_whole

_test_split = with_default("--split", default="testall", help="The split with COCO's test images.")


@click.command("prepare")
@click.argument("source")
@click.argument("folder", type=PATH)
@click.option("--images", help="Folder that image paths are relative to; default: SOURCE's.")
@click.option("--image-column", help="The column of images or their paths.")
@click.option("--caption-column", "caption_columns", multiple=True, help="A column of captions; may be repeated.")
@click.option("--id-column", help="The column of ids; default: paths, or row numbers.")
@click.option("--split-column", help="The column with the split: train, dev or test.")
@click.option("--split-sizes", default="", help="Draw splits: dev=1000,test=1000; train is the rest.")
@with_default("--seed", default=0, type=click.IntRange(min=0), help="Seed that draws the splits.")
@with_default(
    "--restval",
    default="train",
    type=click.Choice(["train", "drop"]),
    help="Add COCO's restval to train, or leave it out.",
)
@with_default("--extractor", default="efficientnet-lite0", help="The encoder that makes an image's features.")
@with_default(
    "--tokens", default="patches", type=click.Choice(["patches", "pooled"]), help="All patches, or one pooled vector."
)
@click.option("--skip-broken", is_flag=True, help="Leave out images that cannot be read.")
@click.option("--pack", is_flag=True, help="Also keep the image files in the folder.")
@with_default("--thumbnails/--no-thumbnails", default=True, help="Write small pictures for pages.")
@with_default("--device", default="auto", help="auto, cpu or cuda.")
@with_default("--batch-size", default=32, type=POSITIVE, help="Images at a time.")
@threads
@cluster_options("Where to extract: this process or Ray. With ray, --threads (0: one) is per unit.")
@click.option("--overwrite", is_flag=True, help="Replace FOLDER, if it was prepared before.")
def prepare_command(
    source: str, folder: Path, split_sizes: str, batch_size: int, thumbnails: bool, overwrite: bool, **options: Any
) -> None:
    """Make a dataset from photographs.

    SOURCE is a table (.csv, .tsv, .jsonl, .parquet) with a column of images or their paths and one or more columns of
    captions; Karpathy's dataset_*.json; COCO's captions_*.json, or the folder of them; a Hugging Face data set (a saved
    folder, a folder of Parquet files, or hf:OWNER/NAME); webdataset's .tar shards; or a folder with train_ids.txt and
    train_caps.txt. FOLDER gets features, captions, pairs, boxes and thumbnails, and can be an experiment's [dataset].

    Run the same command again to resume an interrupted run.
    """
    from aoq.pipeline.config.dataset import Source
    from aoq.pipeline.prepare.listing import read_sizes
    from aoq.pipeline.prepare.prepare import prepare_folder

    engine = Engine(**{name: options.pop(name) for name in ("device", "threads", "backend", "ray_address")})
    section = Source(path=source, split_sizes=read_sizes(split_sizes), **options)
    if (above := folder.parent.parent).is_dir():  # data/mine makes data/ too
        with writing_in(above):
            folder.parent.mkdir(exist_ok=True)
    begun = folder.name, f"{folder.name}.work"
    with scratch_beside(folder, keep=lambda one: all((one / name).exists() for name in begun)) as scratch:
        prepared, work = (scratch / name for name in begun)
        if folder.exists() and not overwrite:
            raise ValueError(f"{folder} exists already; choose another name, or replace it with --overwrite.")
        if folder.exists() and not (folder / PREPARED).is_file():
            raise ValueError(f"{folder} was not made by `aoq prepare`, so it is not replaced; choose another name.")
        with show_progress("preparing") as report:
            extractor, splits = prepare_folder(
                section, prepared, work, engine, thumbnails=thumbnails, batch=batch_size, report=report
            )
        replace_output(prepared, folder)
    for name, counts in splits.items():
        echo(f"{name}: {counts['images']:,} images, {counts['captions']:,} captions")
    echo(f"{folder}: {extractor.tokens} × {extractor.dims} features per image by {extractor.name}")
    echo_next(shlex.join(["aoq", "data", "check", str(folder)]))


@click.command("embed")
@click.argument("folder", type=PATH)
@click.argument("output", type=PATH)
@click.option("--encoder", "name", required=True, help="Encoder, such as transformers:openai/clip-vit-base-patch32.")
@split
@with_default("--device", default="auto", help="auto, cpu or cuda.")
@threads
@cluster_options("Where to encode: this process or Ray. With ray, --threads (0: one) is per unit.")
def embed_command(folder: Path, output: Path, name: str, split: str, **options: Any) -> None:
    """Embed images and captions.

    FOLDER is a dataset folder of `aoq prepare`; the new folder OUTPUT gets images.npy and captions.npy: unit vectors
    by an encoder whose two towers share a space, one row per image or caption, in the folder's order. The encoder is
    transformers:NAME, open_clip:NAME/TAG or sentence-transformers:NAME; a path works as a name. `aoq mine` takes the
    two files, and

    \b
      [teacher]
      encoder = "transformers:NAME"

    does the same inside an experiment, instead of a first round. An interrupted run resumes.
    """
    from aoq.pipeline.stages.encoding import Encoding, write_encoded

    engine, opened = Engine(**options), open_split(folder, split)
    encoding = Encoding(name, folder, split, opened.image_count, opened.image_count, opened.captions)
    engine.torch_device()
    with made_whole(output, keep=lambda one: any(one.glob("*.blocks/*.unit")) and not output.exists()) as embedded:
        embedded.mkdir(exist_ok=True)
        with show_progress("embedding") as report:
            write_encoded(encoding, embedded, embedded.parent / f"{output.name}.blocks", engine, report)
    sizes = f"{opened.image_count:,} images and {opened.caption_count:,} captions"
    echo(f"{output}: {sizes}, {encoding.encoder.images.dims} numbers each, by {name}")
    vectors = (str(output / f"{side}.npy") for side in ("images", "captions"))
    echo_next(f"{shlex.join(['aoq', 'mine', *vectors])} TABLE --pairs PAIRS, or --per-image K")


@click.group("data")
def data_command() -> None:
    """Check or annotate dataset folders."""


@data_command.command("check")
@click.argument("folder", type=PATH)
@click.option("--full", is_flag=True, help="Also compare files with the hashes that `aoq prepare` recorded.")
@as_json
def _check_folder(folder: Path, full: bool, as_json: bool) -> None:
    """Check every split of a folder.

    Print what each split of FOLDER holds, then all of its errors and warnings. The exit code is 1 if there is an error.
    """
    from aoq.pipeline.data.check import examine_folder
    from aoq.pipeline.data.findings import Flaw, total

    examined = examine_folder(folder)
    flaws = [*(Flaw(*each) for each in (changed_files(folder) if full else ())), *examined.flaws]
    errors, warnings = total(flaws, "error"), total(flaws, "warning")
    if as_json:
        echo_json({"folder": str(folder), "splits": [*map(asdict, examined.facts)], "flaws": [*map(asdict, flaws)]})
        sys.exit(bool(errors))
    for line in [*examined.facts, *flaws]:
        echo(line)
    if errors:
        echo(f"{counted(errors, 'error')}, {counted(warnings, 'warning')}", err=True)
        sys.exit(1)
    echo(f"{folder} is sound" + (f", with {counted(warnings, 'warning')}" if flaws else ""))
    if {"train", "dev"} <= {facts.split for facts in examined.facts}:
        echo_next(f'aoq run EXPERIMENT, a file with folder = "{folder.name}" in its [dataset]')


@data_command.command("relevance")
@click.argument("folder", type=PATH)
@_test_split
def _add_relevance(folder: Path, split: str) -> None:
    """Add the matches of ECCV Caption and CxC.

    Write them beside a split of FOLDER. Evaluations then measure by them.

    Needs the extra: pip install "aoq[eccv]".
    """
    from aoq.pipeline.data.annotations import write_coco_relevance

    for path in write_coco_relevance(folder, open_split(folder, split)):
        echo(path)


@data_command.command("classes")
@click.argument("folder", type=PATH)
@click.argument("instances", type=PATH)
@_test_split
def _add_classes(folder: Path, instances: Path, split: str) -> None:
    """Add the objects of COCO's images.

    Write the objects in INSTANCES (COCO's instances_val2014.json) beside a split of FOLDER. Evaluations then give PMRP.

    Needs the extra: pip install "aoq[eccv]".
    """
    from aoq.pipeline.data.annotations import write_coco_classes

    echo(write_coco_classes(folder, open_split(folder, split), instances))
