"""Seconds of mining both directions on a GPU, compared with other ways.

    python benchmarks/gpu_mining.py --output gpu-mining.md          on a machine with a GPU
    python benchmarks/gpu_mining.py --device cpu --small            checks that this script runs

The vectors of `benchmarks/mining.py`. Ours is the search without writing: positives masked, exact and certified lists
of both directions in host memory. The bare product is the time of all tiles' products alone. Rivals search both
directions without masking positives or proving anything: `torch` multiplies block by block in TF32 and takes topk,
`faiss` is GpuIndexFlatIP in float32, left out where it is not installed. Each way starts with vectors
in host memory, once to warm up; seconds are the medians of the turns.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from datetime import date
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parent.parent)  # beside this file, `pipeline` is a benchmark

import click
import numpy as np
import torch

from aoq.pipeline.engine import products_in
from aoq.pipeline.search.arithmetic import Operand
from aoq.pipeline.search.backends import run_search
from aoq.pipeline.search.device import to_device
from aoq.pipeline.search.exact import ONE_PASS
from aoq.pipeline.search.faiss_flat import has_faiss, load_faiss
from aoq.pipeline.search.problem import Problem
from aoq.pipeline.search.scan import Scan
from aoq.pipeline.search.units import MemoryStore
from benchmarks.mining_world import EACH, SIZES, make_world

DEPTHS = (300, 60), (20, 20)
TOGETHER = 2**29  # similarities that torch computes at a time
Seconds = Mapping[str, float]
Way = Callable[[Problem, torch.device], Seconds]


def ours(problem: Problem, device: torch.device) -> Seconds:
    """Seconds of the steps and of the whole, with what is checked before."""
    backend, times = ONE_PASS, [time.perf_counter()]
    ends = list(np.cumsum([len(step) for step in backend.plan(problem)]))
    progress = lambda done, _: times.append(time.perf_counter()) if done in ends else None  # noqa: E731
    for lists in run_search(problem, backend, MemoryStore(), progress=progress).lists.values():
        for _ in lists:
            pass
    steps = dict(zip(("limits", "scan", "merge"), np.diff(times).tolist(), strict=False))
    return {"seconds": time.perf_counter() - times[0], **steps}


def searches(problem: Problem, one: Any, other: Any) -> list[tuple[Any, Any, int]]:
    """Anchors, candidates and the number to find, of both directions, with room for positives."""
    return [(one, other, problem.h_captions + EACH), (other, one, problem.h_images + 1)]


def by_torch(problem: Problem, device: torch.device) -> Seconds:
    sides = (torch.from_numpy(np.array(side)).to(device) for side in (problem.images, problem.captions))
    with products_in("tf32"):
        for anchors, others, k in searches(problem, *sides):
            for block in anchors.split(max(1, TOGETHER // len(others))):
                (block @ others.T).topk(k)[1].cpu()
    return {}


def by_faiss(problem: Problem, device: torch.device) -> Seconds:
    import faiss

    resources = faiss.StandardGpuResources()
    for anchors, others, k in searches(problem, np.array(problem.images), np.array(problem.captions)):
        index = faiss.GpuIndexFlatIP(resources, others.shape[1])
        index.add(others)
        index.search(anchors, k)
    return {}


def ways(device: torch.device) -> dict[str, Way]:
    """All that run here; rivals on GPUs need one."""
    found: dict[str, Way] = {"ours": ours, "torch, TF32": by_torch}
    if device.type == "cuda" and has_faiss() and hasattr(load_faiss(), "GpuIndexFlatIP"):
        found["faiss, float32"] = by_faiss
    return found


def timed(way: Way, problem: Problem, device: torch.device) -> Seconds:
    if device.type == "cuda":
        torch.cuda.empty_cache()
    began = time.perf_counter()
    found = way(problem, device)
    return {"seconds": time.perf_counter() - began, **found}


def product_seconds(problem: Problem) -> tuple[str, float]:
    """The arithmetic of a search, and the time of all tiles' products, from one tile multiplied ten times."""
    side = problem["i2t"]
    scan = Scan.of(side)
    rows, columns = slice(0, scan.tiling.rows), slice(0, scan.tiling.columns)
    one = Operand.of(to_device(side.anchors[rows], scan.device), side.anchor_norms[rows], scan.how).near
    other = Operand.of(to_device(side.candidates[columns], scan.device), side.candidate_norms[columns], scan.how).near
    wait = torch.cuda.synchronize if scan.device.type == "cuda" else lambda: None
    with products_in("tf32" if scan.how.name == "tf32" else "float32"):
        one @ other.T
        wait()
        began = time.perf_counter()
        for _ in range(10):
            one @ other.T
        wait()
    each = (time.perf_counter() - began) / 10
    return scan.how.name, each * len(problem.images) * len(problem.captions) / (len(one) * len(other))


def page_of(place: Path, name: str, depths: tuple[int, int], device: torch.device, repeat: int) -> list[str]:
    images, captions = (np.load(place / f"{side}.npy", mmap_mode="c") for side in ("images", "captions"))
    image_of = np.repeat(np.arange(len(images), dtype=np.int32), EACH)
    make = lambda: Problem(images, captions, image_of, *depths, device=str(device))  # noqa: E731
    found: dict[str, list[Seconds]] = {}
    for turn in range(repeat + 1):
        for way, run in ways(device).items():
            seconds = timed(run, make(), device)
            if turn:
                found.setdefault(way, []).append(seconds)
    medians = {
        way: {key: float(np.median([turn[key] for turn in turns])) for key in turns[0]} for way, turns in found.items()
    }
    (precision, bare), mine = product_seconds(make()), medians["ours"]
    operations = 2.0 * len(images) * len(captions) * images.shape[1]
    asked = f"{name}, h = {depths[0]}/{depths[1]}"
    ratio = {way: one["seconds"] / mine["seconds"] for way, one in medians.items()}
    lines = [f"| {asked} | {way} | {one['seconds']:.2f} | {ratio[way]:.2f} |" for way, one in medians.items()]
    steps = ", ".join(f"{step} {mine[step]:.2f} s" for step in ("limits", "scan", "merge"))
    rate, share = operations / mine["scan"] / 1e12, bare / mine["scan"]
    note = (
        f"{name}: {steps}; {precision}, {rate:.1f} TFLOP/s over the scan, of which the bare product takes {share:.0%}."
    )
    return [*lines, f"| | {note} | | |"]


@click.command()
@click.option("--device", "name", default="cuda", show_default=True)
@click.option("--sizes", default="XL,COCO", show_default=True, help="Names of benchmarks/mining_world.py.")
@click.option("--repeat", default=3, show_default=True)
@click.option("--small", is_flag=True, help="Sizes that a CPU manages.")
@click.option("--folder", type=click.Path(path_type=Path), help="Where the vectors are written; else a temporary one.")
@click.option("--output", type=click.Path(path_type=Path), help="Write the page there, too.")
def main(name: str, sizes: str, repeat: int, small: bool, folder: Path | None, output: Path | None) -> None:
    device = torch.device(name)
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else name
    asked = {"tiny": (300, 32)} if small else {size: SIZES[size] for size in sizes.split(",")}
    page = [f"# Mining on {where}, torch {torch.__version__}, {date.today()}", ""]
    page += ["| | | seconds | / ours |", "|---|---|---|---|"]
    with tempfile.TemporaryDirectory() as temporary:
        for size, (images, dimensions) in asked.items():
            place = (folder or Path(temporary)) / f"{images}x{dimensions}"
            make_world(place, images, dimensions)
            for depths in DEPTHS:
                page += page_of(place, f"{size}, {images:,} x {EACH * images:,} x {dimensions}", depths, device, repeat)
    text = "\n".join(page) + "\n"
    click.echo(text)
    if output is not None:
        output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
