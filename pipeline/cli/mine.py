"""`aoq mine`: a negative table of anybody's vectors."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aoq.pipeline.artifact import write_atomically
from aoq.pipeline.cli.options import PATH, mining_options, with_default
from aoq.pipeline.cli.output import echo
from aoq.pipeline.cli.vectors import open_problem, require_pairing
from aoq.pipeline.digests import file_sha256
from aoq.pipeline.progress import show_progress
from aoq.pipeline.scratch import scratch_beside
from aoq.pipeline.search.remote import fetch_given, is_address
from aoq.pipeline.search.vector_files import Given
from aoq.pipeline.search.vectors import check_vectors, open_ids
from aoq.pipeline.settings import configured_path

if TYPE_CHECKING:
    from aoq.pipeline.engine import Engine


@click.command()
@click.argument("images")
@click.argument("captions")
@click.argument("output", type=PATH)
@mining_options
@with_default(
    "--backend",
    default="inprocess",
    type=click.Choice(["inprocess", "ray"]),
    help="Who mines; with ray, threads (0: one) and memory are a unit's, and many run at a time.",
)
@click.option("--ray-address", default="", help="HOST:PORT of a Ray cluster, or auto; default: start Ray here.")
def mine(
    images: str,
    captions: str,
    output: Path,
    threads: int,
    backend: str,
    ray_address: str,
    **options: Any,
) -> None:
    """Mine the negative table of two vector files.

    The hardest negatives of IMAGES among CAPTIONS, and the other way round, are written to the folder OUTPUT.

    IMAGES and CAPTIONS are matrices with a vector a row: .npy, .safetensors, .parquet, .arrow or .feather files, or
    folders of datasets' save_to_disk; FILE::NAME for one tensor or column of several. FILE::NAME::IDS names a column of
    ids as well, which stand in exports where row numbers would. They may be any two sides that are compared by cosine
    or dot product. A FILE may be an address: s3://bucket/images.npy is copied once into [paths] cache_root of
    luigi.cfg.

    A run that was cut short goes on where it was when the same command is given again.
    """
    from aoq.pipeline.engine import Engine

    require_pairing(options)
    memory_mb = options["memory_mb"]
    engine = Engine(device="cpu", threads=threads, mining_memory_mb=memory_mb, backend=backend, ray_address=ray_address)
    with scratch_beside(output, keep=_has_lists) as build:
        if output.exists():
            raise ValueError(f"{output} is there already; remove it or choose another folder.")
        _mine({"images": images, "captions": captions}, build, engine, options)
        os.replace(build / "table", output)
    manifest = json.loads((output / "manifest.json").read_text(encoding="utf-8"))
    for direction, about in manifest["directions"].items():
        found, what = ("recall", "of the true lists") if "recall" in about else ("certified_share", "certified")
        sure = f"{about['guarantee']}, {about[found]:.2%} {what}"
        echo(f"{direction}: {about['anchors']} lists of {about['h']}, {sure}")


def _has_lists(build: Path) -> bool:
    """Whether anything was mined that a next run could use."""
    return any(build.glob("shards/*.unit"))


def _mine(files: Mapping[str, str], build: Path, engine: Engine, options: Mapping[str, Any]) -> None:
    from aoq.pipeline.mining.mine import mine as mine_table
    from aoq.pipeline.search.runners import choose_runner
    from aoq.pipeline.tables.ids import write_ids

    engine.torch_device()
    copies = {side: fetch_given(given, configured_path("cache_root")) for side, given in files.items()}
    opened = {side: Given.of(copy) for side, copy in copies.items()}
    addresses = {
        found.path.resolve(): files[side].partition("::")[0]
        for side, found in opened.items()
        if is_address(files[side])
    }
    run = choose_runner(engine, addresses)
    hashes = {side: found.sha256 for side, found in opened.items()}
    ids = {side: named for side, copy in copies.items() if (named := open_ids(copy)) is not None}
    shaped = {key: options[key] for key in ("normalise", "per_image", "h_captions", "h_images", "metric", "search")}
    pairs = options["pairs"] and file_sha256(options["pairs"])
    job = json.dumps({"vectors": hashes, "given": files, "pairs": pairs, **shaped, "version": version("aoq")}).encode()
    seen, converted = build / "job.json", build / "vectors"
    if not seen.is_file() or seen.read_bytes() != job:
        for old in (build / "shards", build / "table", converted):  # of another command
            shutil.rmtree(old, ignore_errors=True)
        write_atomically(seen, job)
    converted.mkdir(exist_ok=True)
    problem = open_problem(copies, converted, options)
    for vectors, given in ((problem.images, files["images"]), (problem.captions, files["captions"])):
        check_vectors(vectors, given, unit=options["metric"] == "cosine")
    provenance = {
        "dataset": sha256(problem.image_of.tobytes()).hexdigest(),
        "teacher": {"vectors_sha256": hashes, "metric": options["metric"], "normalised": options["normalise"]},
        "tool": "aoq",
        "tool_version": version("aoq"),
    }
    with show_progress("mining") as report:
        mine_table(
            problem,
            search=options["search"],
            provenance=provenance,
            work=build / "shards",
            output=build / "table",
            recall_floor=options["recall_floor"],
            run=run,
            progress=lambda done, total: report(done, total, "units"),
        )
    write_ids(build / "table", ids)
