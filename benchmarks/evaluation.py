"""Seconds of recalls, ranks and rsum from a similarity matrix, compared with the official sort of the same scores.

    python benchmarks/evaluation.py 1000 5000

Five captions per image, random scores. `official` sorts every row and every column and looks for the positives, as the
released codes of VSE++, SCAN, VSRN and AOQ do. Both recalls are checked against each other. Seconds are medians of
consecutive turns in one process with one thread. Last, ours including the scores, from vectors of 1024 numbers into a
matrix on disk, with its memory.
"""

from __future__ import annotations

import sys
import tempfile
import time
from itertools import product
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parent.parent)  # beside this file, `pipeline` is a benchmark

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from aoq.pipeline.embedding import SCORED_CAPTIONS, SCORED_IMAGES, reserved_file
from aoq.pipeline.evaluation.retrieval import K, retrieval_ranks, summarise
from benchmarks.memory import Peak

EACH = 5


def ours(similarity: np.ndarray) -> list[float]:
    image_of = np.repeat(np.arange(len(similarity)), EACH)
    return recalls_of(summarise(retrieval_ranks(similarity, image_of)))


def official(similarity: np.ndarray) -> list[float]:
    images = len(similarity)
    i2t, t2i = np.zeros(images), np.zeros(EACH * images)
    for image in range(images):
        order = np.argsort(similarity[image])[::-1]
        i2t[image] = min(np.where(order == EACH * image + n)[0][0] for n in range(EACH))
    columns = similarity.T
    for image in range(images):
        for n in range(EACH):
            order = np.argsort(columns[EACH * image + n])[::-1]
            t2i[EACH * image + n] = np.where(order == image)[0][0]
    return [100 * float((ranks < k).mean()) for ranks in (i2t, t2i) for k in K]


def recalls_of(metrics: dict[str, float]) -> list[float]:
    return [metrics[f"{direction}_r{k}"] for direction in ("i2t", "t2i") for k in K]


@click.command()
@click.argument("images", nargs=-1, type=int, required=True)
@click.option("--repeat", default=3, show_default=True)
def main(images: tuple[int, ...], repeat: int) -> None:
    """Print a table for each number of IMAGES."""
    import torch

    torch.set_num_threads(1)
    for count in images:
        rng = np.random.default_rng(0)
        similarity = rng.standard_normal((count, EACH * count), dtype=np.float32)
        similarity[np.repeat(np.arange(count), EACH), np.arange(EACH * count)] += 3.5  # some recall
        evaluators = {"ours": ours, "official": official}
        seconds: dict[str, list[float]] = {name: [] for name in evaluators}
        recalls = {}
        for _ in range(repeat):
            for name, evaluate in evaluators.items():
                started = time.perf_counter()
                recalls[name] = evaluate(similarity)
                seconds[name].append(time.perf_counter() - started)
        table = Table("", "seconds", "/ ours", "rsum", title=f"{count:,} x {EACH * count:,}", title_justify="left")
        for name, taken in seconds.items():
            ratio = np.median(np.array(taken) / seconds["ours"])
            table.add_row(name, f"{np.median(taken):.2f}", f"{ratio:.1f}", f"{sum(recalls[name]):.2f}")
            if np.abs(np.subtract(recalls[name], recalls["ours"])).max() > 1e-6:
                raise click.ClickException(f"{name} finds {recalls[name]}, ours {recalls['ours']}")
        Console(width=100).print(table)
        del similarity
        show_embeddings(count, rng)


def show_embeddings(count: int, rng: np.random.Generator) -> None:
    """Evaluate from vectors as `aoq` does: tile by tile into a matrix on disk, then ranks."""
    import torch

    images, captions = (
        torch.from_numpy(rng.standard_normal((n, 1024), dtype=np.float32)) for n in (count, EACH * count)
    )
    with tempfile.TemporaryDirectory() as folder, Peak() as peak:
        started = time.perf_counter()
        similarity = reserved_file(Path(folder) / "similarity.npy", (count, EACH * count))
        for rows, columns in product(range(0, count, SCORED_IMAGES), range(0, EACH * count, SCORED_CAPTIONS)):
            tile = images[rows : rows + SCORED_IMAGES] @ captions[columns : columns + SCORED_CAPTIONS].T
            similarity[rows : rows + SCORED_IMAGES, columns : columns + SCORED_CAPTIONS] = tile.numpy()
        ours(similarity)
        seconds = time.perf_counter() - started
    Console(width=100).print(
        f"with the products of 1024 dimensions: {seconds:.2f} s, {peak.bytes / 1e6:.0f} MB beyond the vectors"
    )


if __name__ == "__main__":
    main()
