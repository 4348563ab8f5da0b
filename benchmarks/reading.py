"""Fraction of the reading time that the step hides, with reading ahead by threads or by a DataLoader's processes.

    python benchmarks/reading.py                       # the step is a wait, as for a GPU
    python benchmarks/reading.py --threads 2 --compute # the step is matrix products on this machine's own cores

Features are float16 in a memory-mapped file of the field's size, 36 regions of 2,048 numbers; a batch has the size of
AdapOffQuin's: three groups. All ways are timed in turn, several times; the table gives each one's median, and that of
the step alone.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import click
import numpy as np
import torch
from numpy.lib.format import open_memmap
from rich.console import Console
from rich.table import Table
from torch.utils.data import DataLoader, Dataset

from aoq.pipeline.training.batches import read_ahead

REGIONS, SIZE = 36, 2048


class Steps(Dataset[torch.Tensor]):
    """The batch of each step, as an item."""

    def __init__(self, make: Callable[[int], torch.Tensor], count: int) -> None:
        self.make, self.count = make, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, step: int) -> torch.Tensor:
        if step >= self.count:
            raise IndexError(step)
        return self.make(step)


def read(features: np.ndarray, images: int, step: int) -> torch.Tensor:
    rows = np.random.default_rng(step).integers(0, len(features), images)
    return torch.from_numpy(np.array(features[rows], dtype=np.float32))


def step_for(compute: bool, milliseconds: float) -> Callable[[], None]:
    """Make a step: a wait, or products that take about as long."""
    if not compute:
        return lambda: time.sleep(milliseconds / 1000)
    matrix = torch.randn(512, 512)
    began = time.perf_counter()
    for _ in range(20):
        matrix @ matrix
    products = max(1, round(20 * milliseconds / 1000 / (time.perf_counter() - began)))
    return lambda: [matrix @ matrix for _ in range(products)].clear()


def milliseconds_a_step(batches: Iterable[object], step: Callable[[], None], steps: int) -> float:
    began = time.perf_counter()
    for _ in batches:
        step()
    return 1000 * (time.perf_counter() - began) / steps


@click.command()
@click.option("--batch-size", default=128, show_default=True)
@click.option("--images", default=1500, show_default=True, help="In the file, of 147 KB each.")
@click.option("--step-ms", default=150.0, show_default=True)
@click.option("--compute", is_flag=True, help="The step computes on this machine's cores.")
@click.option("--threads", default=1, show_default=True, help="torch's threads.")
@click.option("--steps", default=12, show_default=True)
@click.option("--repeats", default=5, show_default=True)
def main(batch_size: int, images: int, step_ms: float, compute: bool, threads: int, steps: int, repeats: int) -> None:
    """Print one table."""
    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "features.npy"
        written = open_memmap(file, "w+", np.float16, (images, REGIONS, SIZE))
        for row in range(images):
            written[row] = np.random.default_rng(row % 50).normal(size=(REGIONS, SIZE))
        written.flush()
        make, step = partial(read, np.load(file, mmap_mode="r"), 3 * batch_size), step_for(compute, step_ms)
        data = Steps(make, steps)
        ways: dict[str, Callable[[], Iterable[object]]] = {"the step alone": lambda: range(steps)}
        for workers in (0, 1, 2):
            ways[f"workers = {workers}"] = partial(read_ahead, make, range(steps), workers)
        for workers in (1, 2):
            ways[f"DataLoader, {workers} processes"] = partial(DataLoader, data, batch_size=None, num_workers=workers)
        found: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(repeats):
            for name, way in ways.items():
                found[name].append(milliseconds_a_step(way(), step, steps))
    table = Table("", "step, ms", "to the step alone", box=None)
    alone = np.median(found["the step alone"])
    for name, values in found.items():
        table.add_row(name, f"{np.median(values):.0f}", f"{np.median(values) / alone:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
