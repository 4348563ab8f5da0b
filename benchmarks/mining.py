"""Seconds and memory of mining both directions, compared with other ways.

    python benchmarks/mining.py S M
    python benchmarks/mining.py XL --repeat 1
    python benchmarks/mining.py S M L --output mining.md --rivals command,faiss

Vectors are clustered, of norm 1, and 2 in 100 captions have the vector of another; each image has five captions. All
ways read the same memory-mapped files. Ours is the whole job: positives masked, exact lists of both directions with
certificates, Parquet on disk; `command` is `aoq mine` from the shell, its start included. `faiss` is the baseline: two
big IndexFlatIP searches that mask and write nothing.

`product float32` is the bare product of all images with all captions, once for both directions, and so are those of the
other arithmetics that this processor has units for: nobody who compares all pairs in that arithmetic takes less. The
column "/ product" holds all figures against the fastest of these. A way that fails says so in its row.

Everything runs in a process of its own, rivals in turn, each with its library or its kernels loaded. Seconds are
medians, wall clock and (in brackets) processor; memory is the peak beyond that at the start of the work; the mapped
vectors do not count. A score counts as found if it reaches the h-th exact one less 1e-6, on 200 sampled anchors per
direction.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parent.parent)  # beside this file, `pipeline` is a benchmark

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.memory import Peak
from benchmarks.mining_rivals import BARE, RIVALS, Work
from benchmarks.mining_world import BLOCK, EACH, SIZES, make_world

console = Console(width=120)

CHECKED = 200
PACKAGES = "aoq", "numpy", "torch", "numba", "faiss-cpu"


@click.command()
@click.argument("sizes", nargs=-1, required=True)
@click.option(
    "--depth", "depths", multiple=True, default=("300/60", "20/20"), show_default=True, help="h of each side."
)
@click.option("--repeat", default=5, show_default=True, help="Turns, of which the median is given.")
@click.option("--rivals", default="faiss", show_default=True)
@click.option("--output", type=click.Path(path_type=Path), help="Write the tables to this Markdown file too.")
@click.option("--search", default="auto", show_default=True, help="Our backend.")
@click.option("--threads", default=0, help="0: as many as this process may use.")
@click.option("--folder", default="", help="Where the vectors are written; else a temporary folder.")
def main(
    sizes: tuple[str, ...],
    depths: tuple[str, ...],
    repeat: int,
    rivals: str,
    output: Path | None,
    search: str,
    threads: int,
    folder: str,
) -> None:
    """Print a table for each of SIZES: S M L XL XL2048 COCO, or IMAGESxDIMENSIONS."""
    threads = threads or len(os.sched_getaffinity(0))
    names = [*filter(None, rivals.split(","))]
    if unknown := [name for name in names if name not in RIVALS]:
        raise click.UsageError(f"there are no rivals {unknown}; known are {', '.join(RIVALS)}.")
    said = [setting(threads)]
    with tempfile.TemporaryDirectory() as temporary:
        for size in sizes:
            images, dimensions = SIZES[size] if size in SIZES else map(int, size.split("x"))
            place = Path(folder or temporary) / f"{images}x{dimensions}"
            make_world(place, images, dimensions)
            ways = [f"ours {search}", *names, *(f"product {one}" for one in able())]
            for depth in depths:
                title = f"{size}: {images:,} x {EACH * images:,} x {dimensions}, h = {depth}, {threads} threads"
                found = run_all(place, title, ways, [int(part) for part in depth.split("/")], repeat, threads)
                said.append(show(title, found))
    if output is not None:
        output.write_text("\n\n".join(said) + "\n", encoding="utf-8")


def setting(threads: int) -> str:
    """Where and with what the figures were measured."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").is_file() else []
    processor = next((line.partition(": ")[2] for line in lines if line.startswith("model name")), "unknown processor")
    versions = []
    for package in PACKAGES:
        try:
            versions.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    units = ", ".join(able())
    where = f"{processor} ({units}), {threads} threads, {date.today():%d %B %Y}, Python {sys.version.split()[0]}"
    line = f"{where}, {', '.join(versions)}."
    console.print(line, highlight=False)
    return line


def able() -> list[str]:
    """Arithmetics that this processor has units for."""
    import torch

    from aoq.pipeline.search.device import arithmetics

    return [how.name for how in arithmetics(torch.device("cpu")) if how.name != "float64"]


def run_all(
    place: Path, title: str, ways: list[str], h: list[int], repeat: int, threads: int
) -> dict[str, list[dict[str, Any]]]:
    """Run all ways in turn; one that fails is not run again."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in ways}
    for turn in range(repeat):
        for name, results in found.items():
            if not any("failed" in result for result in results):
                with console.status(f"{title}: {name} {turn + 1}/{repeat}"):
                    results.append(run(place, name, h, threads))
    (first, *_) = found.values()
    if "failed" in first[-1]:
        raise click.ClickException(f"{ways[0]}: {first[-1]['failed']}")
    return found


def median(results: list[dict[str, Any]], key: str) -> float:
    return float(np.median([result[key] for result in results]))


def show(title: str, found: dict[str, list[dict[str, Any]]]) -> str:
    """Print the figures of all ways, and give them as Markdown."""
    ours, *_ = found.values()
    whole = {name: results for name, results in found.items() if "failed" not in results[-1]}
    bare = min((median(results, "seconds") for name, results in whole.items() if name in BARE), default=np.nan)
    rows = []
    for name, results in found.items():
        if "failed" in results[-1]:
            rows.append([name, results[-1]["failed"], *[""] * 6])
            continue
        ratio = np.median([other["seconds"] / our["seconds"] for other, our in zip(results, ours, strict=True)])
        seconds, processor, memory = (median(results, key) for key in ("seconds", "processor", "memory"))
        share = [f"{results[0][key]:.4%}" if results[0].get(key) is not None else "" for key in ("i2t", "t2i")]
        room = "" if np.isnan(memory) else f"{memory / 1e6:.0f}"
        figures = f"{seconds:.2f}", f"({processor:.2f})", f"{ratio:.2f}", f"{seconds / bare:.1f}", room
        rows.append([name, *figures, *share])
    columns = ["", "seconds", "(processor)", "/ ours", "/ product", "MB", "found i2t", "found t2i"]
    typical = sorted(ours, key=lambda result: result["seconds"])[len(ours) // 2]
    parts = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in typical["parts"].items())
    return f"{show_table(title, columns, rows)}\n\n{show_line(f'ours: {parts}')}"


def show_line(line: str) -> str:
    console.print(line, highlight=False)
    return line


def show_table(title: str, columns: list[str], rows: list[list[str]]) -> str:
    """Print a table, and give it as Markdown."""
    table = Table(*columns, title=title, title_justify="left")
    for row in rows:
        table.add_row(*row)
    console.print(table)
    lines = [columns, ["---"] * len(columns), *rows]
    return f"**{title}**\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines)


def run(place: Path, name: str, h: list[int], threads: int) -> dict[str, Any]:
    """Run one turn, in a process of its own."""
    code = f"import sys; sys.path.insert(0, {sys.path[0]!r}); from benchmarks.mining import turn; turn(*sys.argv[1:])"
    command = [sys.executable, "-c", code, str(place), name, str(h[0]), str(h[1]), str(threads)]
    waiting = {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "10000"}  # as the commands set them
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), **waiting}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        console.print(done.stderr[-2000:], highlight=False, markup=False)
        return {"failed": "failed" if done.returncode > 0 else "was killed"}
    return json.loads(done.stdout.splitlines()[-1])


def turn(place: str, name: str, h_captions: str, h_images: str, threads: str) -> None:
    """Work of that process: print the figures as JSON."""
    import torch

    torch.set_num_threads(int(threads))
    images, captions = (np.load(Path(place) / f"{side}.npy", mmap_mode="r") for side in ("images", "captions"))
    images.sum(), captions.sum()  # reads the files once, for all
    search = name.removeprefix("ours ")
    work = RIVALS[name]() if search == name else prepare_ours(search, images.shape[1])
    with Peak() as peak:
        wall, processor = time.perf_counter(), sum(os.times()[:4])  # of its children too
        result = work(images, captions, int(h_captions), int(h_images))
        figures = {"seconds": time.perf_counter() - wall, "processor": sum(os.times()[:4]) - processor}
    read_scores = result.pop("scores", None)  # after the clock has stopped and memory was measured
    if read_scores is not None:
        result |= {side: share_found(images, captions, scores, side) for side, scores in read_scores().items()}
    print(json.dumps({**figures, "memory": peak.bytes, **result}))


def prepare_ours(search: str, dimensions: int) -> Work:
    from aoq.pipeline.mining.mine import mine
    from aoq.pipeline.search.backends import choose_backend
    from aoq.pipeline.search.problem import Problem
    from aoq.pipeline.tables.table import read_table

    def work(images: np.ndarray, captions: np.ndarray, h_captions: int, h_images: int) -> dict[str, Any]:
        image_of = np.repeat(np.arange(len(images), dtype=np.int32), EACH)
        problem = Problem(images, captions, image_of, h_captions, h_images)
        backend = choose_backend(search)
        steps = backend.plan(problem)
        counts = [len(step) for step in steps]
        names = ["limits", "scan", "merge"] if len(counts) == 3 else ["search"]
        ends, times = np.cumsum(counts), [time.perf_counter()]
        folder = Path(tempfile.mkdtemp())
        mine(
            problem,
            search=replace(backend, plan=lambda problem: steps),
            provenance={"dataset": "benchmark"},
            work=folder / "work",
            output=folder / "table",
            recall_floor=0.01,
            progress=lambda done, total: times.append(time.perf_counter()) if done in ends else None,
        )
        times.append(time.perf_counter())
        parts = dict(zip([*names, "write"], np.diff(times).tolist(), strict=False))

        def read_scores() -> dict[str, np.ndarray]:
            table = read_table(folder / "table")
            shutil.rmtree(folder)
            return {"i2t": table.i2t.scores, "t2i": table.t2i.scores}

        return {"parts": parts, "scores": read_scores}

    warm = np.random.default_rng(0).normal(size=(40, dimensions)).astype(np.float32)
    sides = warm, np.repeat(warm, EACH, axis=0)
    for side in sides:
        side.setflags(write=False)  # like the mapped vectors: kernels are compiled anew for writable ones
    work(*sides, 3, 3)  # loads the kernels, as rivals have loaded theirs
    return work


def share_found(images: np.ndarray, captions: np.ndarray, scores: np.ndarray, side: str) -> float:
    """Fraction found of the h best of sampled anchors, by float64 products."""
    anchors, candidates = (images, captions) if side == "i2t" else (captions, images)
    h, hits = scores.shape[1], 0
    rows = np.random.default_rng(0).choice(len(anchors), min(CHECKED, len(anchors)), replace=False)
    sampled = anchors[rows].astype(np.float64)
    parts = (candidates[start : start + BLOCK].astype(np.float64) for start in range(0, len(candidates), BLOCK))
    products = np.concatenate([sampled @ part.T for part in parts], axis=1)
    for row, exact in zip(rows, products, strict=True):
        own = np.arange(row * EACH, row * EACH + EACH) if side == "i2t" else row // EACH
        exact[own] = -np.inf
        last = np.partition(exact, len(exact) - h)[len(exact) - h]
        hits += int((scores[row] >= last - 1e-6).sum())
    return hits / (len(rows) * h)


if __name__ == "__main__":
    main()
