"""Seconds, memory and recall of mining with an index, beyond what an exact search affords.

    python benchmarks/index.py                            # 1,000,000 x 1,000,000 x 256, h = 50
    python benchmarks/index.py --rows 300000 --search hnsw

A row is a pair of an image and a caption. Its content is a theme (one of 500) plus a topic (one of N / 40) plus its own
part, and either side adds noise of its own: Gaussian vectors, weighed 0.6, 0.6, 0.6 and 0.45, whose k-th dimension has
a deviation of k^-0.4, for models fill few of their dimensions evenly. All are divided by their norms.
So topics overlap, lists of 50 reach beyond a topic of 40, and images and captions are two clouds, not one.

Seconds are wall clock, by step, and the processor's of all; memory is the peak of anonymous memory beyond that at the
start: mapped vectors and indexes do not count. Recall is what the table says, and once more by brute force in float64
on other anchors. The second run has other depths and finds the indexes.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parent.parent)  # beside this file, `pipeline` is a benchmark

import click
import numpy as np
import torch

from aoq.pipeline.mining.mine import mine
from aoq.pipeline.search.backends import choose_backend
from aoq.pipeline.search.problem import READ_ROWS, Problem
from aoq.pipeline.tables.files import read_lists, read_manifest
from benchmarks.memory import Peak

THEMES, TOPIC_ROWS, SPECTRUM = 500, 40, -0.4
THEME, TOPIC, OWN, NOISE = 0.6, 0.6, 0.6, 0.45
CHECKED = 300
STEPS = ("indexes and breadths", "lists", "recall", "wider searches, table")


@click.command()
@click.option("--rows", default=1_000_000, show_default=True)
@click.option("--dimensions", default=256, show_default=True)
@click.option("--depth", default=50, show_default=True, help="h of both sides.")
@click.option("--again", default=20, show_default=True, help="h of the second run, which finds the indexes; 0: none.")
@click.option("--search", default="ivf", show_default=True)
@click.option("--recall", default=0.95, show_default=True)
@click.option("--threads", default=2, show_default=True)
@click.option("--memory-mb", default=1500, show_default=True)
@click.option("--folder", type=click.Path(path_type=Path), help="Where all is written; else a temporary folder.")
def main(
    rows: int,
    dimensions: int,
    depth: int,
    again: int,
    search: str,
    recall: float,
    threads: int,
    memory_mb: int,
    folder: Path | None,
) -> None:
    """Mine both directions of ROWS pairs, and say what it took."""
    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory() as temporary:
        place = folder or Path(temporary)
        place.mkdir(parents=True, exist_ok=True)
        make_pairs(place, rows, dimensions)
        images, captions = (np.load(place / f"{side}.npy", mmap_mode="r") for side in ("images", "captions"))
        for h in filter(None, (depth, again)):
            problem = Problem(images, captions, np.arange(rows, dtype=np.int32), h, h, memory_mb * 1_000_000)
            found = run(problem, search, recall, place)
            click.echo(json.dumps({"rows": rows, "dimensions": dimensions, "h": h, "threads": threads, **found}))


def run(problem: Problem, search: str, recall: float, place: Path) -> dict[str, Any]:
    """Mine, and collect the figures."""
    output = place / f"table-{problem.h_captions}"
    ends = np.cumsum([len(step) for step in choose_backend(search).plan(problem)])
    times, processor = [time.perf_counter()], time.process_time()
    with Peak() as peak:
        mine(
            problem,
            search=search,
            provenance={"dataset": "benchmark"},
            work=place / f"work-{problem.h_captions}",
            output=output,
            recall_floor=recall,
            indexes=place / "kept",
            progress=lambda done, total: times.append(time.perf_counter()) if done in ends[len(times) - 1 :] else None,
        )
    times.append(time.perf_counter())
    seconds = dict(zip(STEPS, np.diff(times).round(1).tolist(), strict=True))
    about = read_manifest(output)["directions"]
    told = ("recall", "recall_interval", "certified_share", "index")
    return {
        "seconds": {**seconds, "all": round(times[-1] - times[0], 1)},
        "processor_seconds": round(time.process_time() - processor, 1),
        "memory_mb": peak.bytes // 10**6,
        "index_mb": sum(file.stat().st_size for file in (place / "kept").rglob("*.faiss")) // 10**6,
        **{direction: {key: said[key] for key in told} for direction, said in about.items()},
        "recall_by_brute_force": brute_force_recall(problem, output),
    }


def brute_force_recall(problem: Problem, output: Path) -> float:
    """Fraction found of the images' lists, on anchors that the search did not sample on purpose."""
    rows = np.random.default_rng(7).choice(len(problem.images), CHECKED, replace=False)
    lists, h = read_lists(output, "i2t", read_manifest(output))[rows], problem.h_captions
    anchors = problem.images[rows].astype(np.float64)
    best = np.full((CHECKED, h), -np.inf)
    for start in range(0, len(problem.captions), READ_ROWS):
        scores = anchors @ problem.captions[start : start + READ_ROWS].astype(np.float64).T
        own = np.flatnonzero((rows >= start) & (rows < start + READ_ROWS))
        scores[own, rows[own] - start] = -np.inf
        best = np.partition(np.concatenate([best, scores], axis=1), -h, axis=1)[:, -h:]
    return float((lists.scores >= best[:, :1] - 1e-6).mean())


def make_pairs(place: Path, rows: int, dimensions: int) -> None:
    """Write the vectors of both sides, block by block."""
    if (place / "captions.npy").is_file():
        return
    generator = torch.Generator().manual_seed(0)
    spread = torch.arange(1, dimensions + 1) ** SPECTRUM

    def draw(count: int) -> torch.Tensor:
        return torch.randn(count, dimensions, generator=generator) * spread

    topics = TOPIC * draw(-(-rows // TOPIC_ROWS))
    topics += THEME * draw(THEMES)[torch.randint(THEMES, (len(topics),), generator=generator)]
    sides = {side: place / f".{side}.npy" for side in ("images", "captions")}
    arrays = {
        side: np.lib.format.open_memmap(file, "w+", np.float32, (rows, dimensions)) for side, file in sides.items()
    }
    for start in range(0, rows, READ_ROWS):
        stop = min(start + READ_ROWS, rows)
        content = topics[torch.randint(len(topics), (stop - start,), generator=generator)] + OWN * draw(stop - start)
        for array in arrays.values():
            noisy = content + NOISE * draw(stop - start)
            array[start:stop] = torch.nn.functional.normalize(noisy).numpy()
    for side, file in sides.items():
        arrays[side].flush()
        file.rename(place / f"{side}.npy")


if __name__ == "__main__":
    main()
