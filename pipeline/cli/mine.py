"""`aoq mine`: a negative table of any vectors."""

from __future__ import annotations

import logging
import os
import shlex
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
import numpy as np

from aoq.pipeline.cli import vector_options
from aoq.pipeline.cli.options import PATH, cluster_options
from aoq.pipeline.cli.output import counted, echo, echo_next
from aoq.pipeline.console import show_progress
from aoq.pipeline.engine import Engine
from aoq.pipeline.extras import is_hub_name
from aoq.pipeline.files import digest, file_sha256, scratch_beside
from aoq.pipeline.search.problem import Problem
from aoq.pipeline.settings import configured_engine, configured_path
from aoq.pipeline.tables.card import describe_guarantee
from aoq.pipeline.tables.files import read_manifest
from aoq.pipeline.tables.pairs import TWO_SIDES, pairing_sha256
from aoq.pipeline.tables.writing import write_ids
from aoq.pipeline.vector_files import VECTOR_READERS, VectorFile
from aoq.pipeline.vectors import fetch_source, is_address, read_vectors

JOB_OPTIONS = ("normalise", "per_image", "min_grade", "h_captions", "h_images", "metric", "search", "sides")
"""Options that must be the same to resume an interrupted run."""
HEAD = 8
"""Rows whose first HEAD numbers differ are not copies."""
logger = logging.getLogger(__name__)


@click.command("mine")
@click.argument("images")
@click.argument("captions", nargs=-1, metavar="[CAPTIONS]")
@click.argument("output", type=PATH)
@vector_options.mining_options
@click.option(
    "--hubness",
    type=click.FloatRange(min=0, min_open=True),
    help="Correct the scores for hubs by an inverted softmax of this temperature, such as 0.05.",
)
@click.option("--sides", nargs=2, metavar="NAME NAME", help="Names of the two sides, if not images and captions.")
@cluster_options("Where to mine: this process or Ray. With ray, --threads (0: one) and --memory-mb are per unit.")
def mine_command(
    images: str, captions: tuple[str, ...], output: Path, threads: int, backend: str, ray_address: str, **options: Any
) -> None:
    """Mine a table from your vectors.

    Write the hardest negatives of each image among CAPTIONS, and of each caption among IMAGES, to the new folder
    OUTPUT. IMAGES alone are one set: each is searched among the others, and pairs count both ways.

    IMAGES and CAPTIONS are matrices with one vector per row: .npy, .npz, .safetensors, .parquet, .arrow or .feather
    files, folders of such parts or of datasets' save_to_disk, or data sets on the hub, hf:OWNER/NAME@SPLIT. FILE::NAME
    names one tensor or column of several. A FILE may be an address: s3://bucket/images.npy is copied once into [paths]
    cache_root of luigi.cfg, on each node of a cluster. Ids are kept beside the lists; exports name rows by them.

    An approximate search keeps its indexes below [paths] artifact_root of luigi.cfg, by default ./artifacts.

    Run the same command again to resume an interrupted run.
    """
    if len(captions) > 1:
        raise click.UsageError(f"give IMAGES, CAPTIONS and OUTPUT; {' '.join(captions[1:])} is one too many")
    if not captions and (output.suffix in VECTOR_READERS or is_hub_name(str(output))):
        raise click.UsageError(f"OUTPUT is missing after {output}: it is the new folder, and the last argument")
    if not captions and options["sides"]:
        raise click.UsageError("--sides names two sides, and IMAGES alone are one set; leave it out")
    vector_options.require_pairing(options, one_set=not captions)
    memory_mb = options["memory_mb"]
    engine = configured_engine(threads=threads, mining_memory_mb=memory_mb, backend=backend, ray_address=ray_address)
    with scratch_beside(output, keep=lambda build: any(build.glob("shards/*.unit"))) as build:
        if output.exists():
            raise ValueError(f"{output} exists already; remove it or choose another folder.")
        _mine_files(dict(zip(TWO_SIDES, (images, *captions), strict=False)), build, engine, options)
        os.replace(build / "table", output)
    for direction, about in read_manifest(output)["directions"].items():
        echo(f"{direction}: {about['anchors']} lists of {about['h']}, {describe_guarantee(about)}")
        if "index" in about:
            index = configured_path("artifact_root") / "index" / about["index"]["key"]
            echo(f"  its index is kept for other depths and pairs, until `aoq gc --delete`: {index}")
    echo(output)
    echo_next(shlex.join(["aoq", "inspect", str(output), "--image", "0"]), shlex.join(["aoq", "stats", str(output)]))


def _mine_files(files: Mapping[str, str], build: Path, engine: Engine, options: Mapping[str, Any]) -> None:
    copies = {side: fetch_source(file, configured_path("cache_root")) for side, file in files.items()}
    opened, converted = {side: VectorFile.of(copy) for side, copy in copies.items()}, build / "vectors"
    converted.mkdir(exist_ok=True)
    by_norms = vector_options.has_unit_norms(options)
    with ThreadPoolExecutor() as pool:
        hashing = {side: pool.submit(getattr, one, "sha256") for side, one in opened.items()}
        read = partial(pool.submit, partial(read_vectors, normalise=by_norms))
        reading = {side: read(one.open(), copies[side], converted / f"{side}.npy") for side, one in opened.items()}
        # The threads work while torch is loaded.
        import torch

        from aoq.pipeline.evaluation.hubness import correct_problem
        from aoq.pipeline.mining.mine import mine
        from aoq.pipeline.on_ray import choose_runner, ship_problem

    torch.set_num_threads(engine.threads or len(os.sched_getaffinity(0)))
    addresses = {opened[side].path.resolve(): file.partition("::")[0] for side, file in files.items()}
    fetched = {path: address for path, address in addresses.items() if is_address(address)}
    run, ids = choose_runner(engine, partial(ship_problem, fetched=fetched)), vector_options.read_ids_of_sides(options)
    vectors, hashes = ({side: one.result() for side, one in each.items()} for each in (reading, hashing))
    problem = replace(vector_options.pair_vectors(vectors, options, ids), device=engine.device)
    if len(set(hashes.values())) < len(files) and len({file.partition("::")[2] for file in files.values()}) == 1:
        _require_own_rows(problem)
    pairs = options["pairs"] and file_sha256(options["pairs"])
    labelled = [file for file in (*options["labels"], options["identity"]) if file is not None]
    if not labelled and (copies_of_others := _count_copies(problem.images)):
        remedy = "--labels FILE pairs them" if problem.one_set else "--identity FILE says which are the same photograph"
        logger.warning("IMAGES has %s equal to an earlier one; %s", counted(copies_of_others, "row"), remedy)
    shape = {
        **{key: options[key] for key in JOB_OPTIONS},
        "labels": [file_sha256(file) for file in labelled],
        "ids": {side: digest(names) for side, names in ids.items()},
    }
    job = {"vectors": hashes, "given": files, "pairs": pairs, **shape, "version": version("aoq")}
    teacher = {"vectors_sha256": hashes, "metric": options["metric"], "normalised": by_norms}
    if hubness := options["hubness"]:
        problem, teacher["hubness"] = correct_problem(problem, hubness, build / "corrected"), hubness
    provenance = {
        **({"sides": list(options["sides"])} if options["sides"] else {}),
        "dataset": pairing_sha256(problem.positives, len(problem.captions)),
        "teacher": teacher,
        "tool": "aoq",
        "tool_version": version("aoq"),
    }
    with show_progress("mining") as report:
        mine(
            problem,
            search=options["search"],
            provenance=provenance,
            of="" if hubness else digest(job),  # corrected vectors are hashed themselves
            work=build / "shards",
            output=build / "table",
            recall_floor=options["recall_floor"],
            indexes=configured_path("artifact_root"),
            run=run,
            progress=lambda done, total: report(done, total, "units"),
        )
    write_ids(build / "table", ids)


def _count_copies(vectors: np.ndarray) -> int:
    """Count the rows that equal an earlier row bit by bit."""
    heads = np.ascontiguousarray(vectors[:, :HEAD]).view(np.dtype((np.void, 4 * min(HEAD, vectors.shape[1])))).ravel()
    _, number, counts = np.unique(heads, return_inverse=True, return_counts=True)
    rows = np.flatnonzero(counts[number] > 1)
    return len(rows) - len({sha256(vectors[row].tobytes()).digest() for row in rows})


def _require_own_rows(problem: Problem) -> None:
    """Refuse rows that would be their own negatives: with the same vectors on both sides, each must be its own pair."""
    paired = problem.positives[problem.positives[:, 0] == problem.positives[:, 1], 0]
    if len(alone := np.setdiff1d(np.arange(len(problem.images)), paired)):
        raise ValueError(
            f"IMAGES and CAPTIONS are the same vectors, and row {alone[0]} is not paired with itself, so it would be "
            "its own negative; give IMAGES alone as one set, or pair every row with itself."
        )
