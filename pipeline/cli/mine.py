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

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Int32


@click.command()
@click.argument("images")
@click.argument("captions")
@click.argument("output", type=click.Path(path_type=Path))
@click.option("--pairs", type=click.Path(path_type=Path), help="A .npy file: the image of each caption, -1 for none.")
@click.option("--per-image", type=click.IntRange(min=1), help="So many consecutive captions belong to each image.")
@click.option("--unpaired", is_flag=True, help="No caption belongs to any image.")
@click.option("--h-captions", default=300, show_default=True, type=click.IntRange(min=1), help="Negatives an image.")
@click.option("--h-images", default=60, show_default=True, type=click.IntRange(min=1), help="Negatives a caption.")
@click.option("--metric", default="cosine", show_default=True, type=click.Choice(["cosine", "dot"]))
@click.option("--normalise", is_flag=True, help="Divide every vector by its norm first.")
@click.option("--search", default="auto", show_default=True, help="auto, onepass, faiss-flat or faiss:FACTORY.")
@click.option(
    "--recall-floor",
    default=0.95,
    show_default=True,
    type=click.FloatRange(min=0, max=1, min_open=True),
    help="What a faiss:FACTORY must find.",
)
@click.option(
    "--memory-mb",
    default=1500,
    show_default=True,
    type=click.IntRange(min=100),
    help="To use beyond the vectors, about.",
)
@click.option("--threads", default=0, type=click.IntRange(min=0), help="0: as many as this process may use.")
def mine(
    images: str,
    captions: str,
    output: Path,
    pairs: Path | None,
    per_image: int | None,
    unpaired: bool,
    normalise: bool,
    threads: int,
    **options: Any,
) -> None:
    """Write the hardest negatives of IMAGES among CAPTIONS, and the other way round, to the folder OUTPUT.

    IMAGES and CAPTIONS are matrices with a vector a row: .npy, .safetensors or .parquet files, FILE::NAME for one
    tensor or column of several. They may be any two sides that are compared by cosine or dot product.

    A run that was cut short goes on where it was when the same command is given again.
    """
    from filelock import FileLock, Timeout

    if sum((pairs is not None, per_image is not None, unpaired)) != 1:
        raise click.UsageError("say who belongs to whom: --pairs FILE, --per-image K or --unpaired")
    if output.exists():
        raise ValueError(f"{output} is there already; remove it or choose another folder.")
    if not output.absolute().parent.is_dir():
        raise ValueError(f"{output.absolute().parent} is no folder to write to.")
    build = output.absolute().parent / f".{output.name}.mining"
    build.mkdir(exist_ok=True)
    try:
        with FileLock(build / "lock", timeout=0):
            try:
                _mine(images, captions, build, pairs, per_image, normalise, threads, options)
            except ValueError:
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
    threads: int,
    options: dict[str, Any],
) -> None:
    from pipeline.artifact import file_sha256, write_atomically
    from pipeline.engine import Engine
    from pipeline.mining.mine import mine as mine_table
    from pipeline.mining.problem import Problem
    from pipeline.mining.vectors import check_vectors, open_vectors, vectors_file
    from pipeline.progress import show_progress

    Engine(device="cpu", threads=threads).torch_device()
    files = {"images": images, "captions": captions}
    hashes = {side: file_sha256(vectors_file(given)) for side, given in files.items()}
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
        vectors[side] = open_vectors(given, build / f"{side}.npy", normalise=normalise)
        check_vectors(vectors[side], given, unit=options["metric"] == "cosine")
    image_of = pairing(len(vectors["images"]), len(vectors["captions"]), pairs, per_image)
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
            progress=lambda done, total: report(done, total, "units"),
        )


def pairing(images: int, captions: int, pairs: Path | None, per_image: int | None) -> Int32[np.ndarray, " captions"]:
    import numpy as np

    if pairs is not None:
        return read_pairs(pairs)
    if per_image is None:
        return np.full(captions, -1, dtype=np.int32)
    if images * per_image != captions:
        raise ValueError(
            f"{images} images of {per_image} captions make {images * per_image}, and there are {captions}."
        )
    return np.repeat(np.arange(images, dtype=np.int32), per_image)


def read_pairs(path: Path) -> Int32[np.ndarray, " captions"]:
    import numpy as np

    image_of = np.load(path)
    if image_of.ndim != 1 or not np.issubdtype(image_of.dtype, np.integer):
        raise ValueError(f"{path} holds {image_of.dtype} of shape {image_of.shape}; an integer a caption is needed.")
    return image_of.astype(np.int32)
