"""`aoq mine`: a negative table of anybody's vectors."""

from __future__ import annotations

import json
import os
import shutil
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aoq.pipeline.cli.mining_options import mining_options, read_pairing, require_pairing
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
    pairs: Path | None,
    per_image: int | None,
    unpaired: bool,
    normalise: bool,
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

    require_pairing(pairs, per_image, unpaired)
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
                _mine(images, captions, build, pairs, per_image, normalise, engine, options)
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


def _mine(
    images: str,
    captions: str,
    build: Path,
    pairs: Path | None,
    per_image: int | None,
    normalise: bool,
    engine: Engine,
    options: dict[str, Any],
) -> None:
    from aoq.pipeline.artifact import file_sha256, write_atomically
    from aoq.pipeline.mining.mine import mine as mine_table
    from aoq.pipeline.progress import show_progress
    from aoq.pipeline.search.problem import Problem
    from aoq.pipeline.search.remote import fetch_given, is_address
    from aoq.pipeline.search.runners import choose_runner
    from aoq.pipeline.search.vectors import check_vectors, open_vectors, vectors_file

    engine.torch_device()
    files = {"images": images, "captions": captions}
    copies = {side: fetch_given(given, configured_path("cache_root")) for side, given in files.items()}
    paths = {side: vectors_file(copy) for side, copy in copies.items()}
    addresses = {
        path.resolve(): files[side].partition("::")[0] for side, path in paths.items() if is_address(files[side])
    }
    run = choose_runner(engine, addresses)
    hashes = {side: file_sha256(path) for side, path in paths.items()}
    shaped = {key: options[key] for key in ("h_captions", "h_images", "metric", "search")}
    paired = {"pairs": pairs and file_sha256(pairs), "per_image": per_image}
    about = {"vectors": hashes, "given": files, "normalise": normalise, **paired, **shaped, "version": version("aoq")}
    job = json.dumps(about).encode()
    if not (build / "job.json").is_file() or (build / "job.json").read_bytes() != job:
        for old in ("shards", "table"):  # of another command
            shutil.rmtree(build / old, ignore_errors=True)
        for side in files:
            (build / f"{side}.npy").unlink(missing_ok=True)
        write_atomically(build / "job.json", job)
    vectors = {}
    for side, given in files.items():
        vectors[side] = open_vectors(copies[side], build / f"{side}.npy", normalise=normalise)
        check_vectors(vectors[side], given, unit=options["metric"] == "cosine")
    image_of = read_pairing(len(vectors["images"]), len(vectors["captions"]), pairs, per_image)
    provenance = {
        "dataset": sha256(image_of.tobytes()).hexdigest(),
        "teacher": {"vectors_sha256": hashes, "metric": options["metric"], "normalised": normalise},
        "tool": "aoq",
        "tool_version": version("aoq"),
    }
    memory = options["memory_mb"] * 1_000_000
    depths = options["h_captions"], options["h_images"]
    with show_progress("mining") as report:
        mine_table(
            Problem(vectors["images"], vectors["captions"], image_of, *depths, memory),
            search=options["search"],
            provenance=provenance,
            work=build / "shards",
            output=build / "table",
            recall_floor=options["recall_floor"],
            run=run,
            progress=lambda done, total: report(done, total, "units"),
        )
