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

from aoq.pipeline.cli.mining_options import mining_options, open_problem, require_pairing
from aoq.pipeline.settings import configured_path

if TYPE_CHECKING:
    from aoq.pipeline.engine import Engine


@click.command()
@click.argument("images")
@click.argument("captions")
@click.argument("output", type=click.Path(path_type=Path))
@mining_options
@click.option(
    "--backend",
    default="inprocess",
    show_default=True,
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

    IMAGES and CAPTIONS are matrices with a vector a row: .npy, .safetensors or .parquet files, FILE::NAME for one
    tensor or column of several. They may be any two sides that are compared by cosine or dot product. A FILE may be an
    address: s3://bucket/images.npy is copied once into [paths] cache_root of luigi.cfg.

    A run that was cut short goes on where it was when the same command is given again.
    """
    from filelock import FileLock, Timeout

    from aoq.pipeline.engine import Engine

    require_pairing(options)
    memory_mb = options["memory_mb"]
    engine = Engine(device="cpu", threads=threads, mining_memory_mb=memory_mb, backend=backend, ray_address=ray_address)
    if output.exists():
        raise ValueError(f"{output} is there already; remove it or choose another folder.")
    if not output.absolute().parent.is_dir():
        raise ValueError(f"{output.absolute().parent} is no folder to write to.")
    build = output.absolute().parent / f".{output.name}.mining"
    build.mkdir(exist_ok=True)
    try:
        with FileLock(build / "lock", timeout=0):
            try:
                _mine({"images": images, "captions": captions}, build, engine, options)
            except (ValueError, OSError, ImportError):
                if not any(build.glob("shards/*.parquet")):  # nothing was mined that a next run could use
                    shutil.rmtree(build)
                raise
            os.replace(build / "table", output)
    except Timeout:
        raise ValueError(f"another process is mining {output}; wait for it.") from None
    shutil.rmtree(build)
    manifest = json.loads((output / "manifest.json").read_text(encoding="utf-8"))
    for direction, about in manifest["directions"].items():
        sure = (
            f"{about['recall']:.2%} of the true lists"
            if "recall" in about
            else f"{about['certified_share']:.2%} certified"
        )
        click.echo(f"{direction}: {about['anchors']} lists of {about['h']}, {about['guarantee']}, {sure}")


def _mine(files: Mapping[str, str], build: Path, engine: Engine, options: Mapping[str, Any]) -> None:
    from aoq.pipeline.artifact import file_sha256, write_atomically
    from aoq.pipeline.mining.mine import mine as mine_table
    from aoq.pipeline.progress import show_progress
    from aoq.pipeline.search.remote import fetch_given, is_address
    from aoq.pipeline.search.runners import choose_runner
    from aoq.pipeline.search.vectors import check_vectors, vectors_file

    engine.torch_device()
    copies = {side: fetch_given(given, configured_path("cache_root")) for side, given in files.items()}
    paths = {side: vectors_file(copy) for side, copy in copies.items()}
    addresses = {
        path.resolve(): files[side].partition("::")[0] for side, path in paths.items() if is_address(files[side])
    }
    run = choose_runner(engine, addresses)
    hashes = {side: file_sha256(path) for side, path in paths.items()}
    shaped = {key: options[key] for key in ("normalise", "per_image", "h_captions", "h_images", "metric", "search")}
    pairs = options["pairs"] and file_sha256(options["pairs"])
    job = json.dumps({"vectors": hashes, "given": files, "pairs": pairs, **shaped, "version": version("aoq")}).encode()
    if not (build / "job.json").is_file() or (build / "job.json").read_bytes() != job:
        for old in ("shards", "table"):  # of another command
            shutil.rmtree(build / old, ignore_errors=True)
        for side in files:
            (build / f"{side}.npy").unlink(missing_ok=True)
        write_atomically(build / "job.json", job)
    problem = open_problem(copies, build, options)
    for vectors, given in ((problem.images, files["images"]), (problem.captions, files["captions"])):
        check_vectors(vectors, given, unit=options["metric"] == "cosine")
    how = {"metric": options["metric"], "normalised": options["normalise"]}
    provenance = {
        "dataset": sha256(problem.image_of.tobytes()).hexdigest(),
        "teacher": {"vectors_sha256": hashes, **how},
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
