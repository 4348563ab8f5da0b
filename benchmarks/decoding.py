"""Photographs decoded and augmented a second, by threads or by processes, and what that costs the training's process.

    python benchmarks/decoding.py --processes 2 --processes 4

JPEGs of 500 x 375 are packed as by `aoq prepare`, and read in random batches with crop, flip and RandAugment.
Processor/wall is how many cores that took: on a free machine it reaches the number of processes, or of threads that get
along with one lock of Python's. "Here" are the processor's milliseconds a photograph in the process that trains. All
ways are timed in turn, several times, and the median is shown.
"""

from __future__ import annotations

import hashlib
import io
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

import click
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image
from rich.console import Console
from rich.table import Table

from aoq.models.towers.preprocessing import Preprocessing
from aoq.pipeline.data.batches import Pixels
from aoq.pipeline.prepare.photographs import GROUP_IMAGES, PACKED, open_photographs
from aoq.pipeline.prepare.pixels import PhotographPixels, decoded_elsewhere

SEEN = Preprocessing(224, 224, 256, (0.5,) * 3, (0.5,) * 3)
TICKS = 100


def write(folder: Path, images: int) -> PhotographPixels:
    rng = np.random.default_rng(0)
    with pq.ParquetWriter(folder / "train_images.parquet", PACKED) as writer:
        for _ in range(0, images, GROUP_IMAGES):
            made = []
            for _ in range(GROUP_IMAGES):
                file, blocks = io.BytesIO(), rng.integers(0, 255, (47, 63, 3), dtype=np.uint8)
                Image.fromarray(blocks).resize((500, 375)).save(file, "JPEG", quality=92)
                made.append(file.getvalue())
            hashes = [hashlib.sha256(one).hexdigest() for one in made]
            columns = [[""] * len(made), [""] * len(made), hashes, [500] * len(made), [375] * len(made), made]
            writer.write_table(pa.table(columns, schema=PACKED))
    count = -(-images // GROUP_IMAGES) * GROUP_IMAGES
    return PhotographPixels(open_photographs(folder, "train", count), SEEN, np.ones(count, np.bool_))


def seconds_of(pid: int) -> float:
    """Processor seconds of another process."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]
    return (int(user) + int(system)) / TICKS


def timed(pixels: Pixels, batch: int, batches: int, images: int) -> tuple[float, float, float]:
    """Photographs a second, processor/wall, and milliseconds a photograph of this process."""
    pids = [*pixels.pool._processes] if isinstance(pixels, PhotographPixels) and pixels.pool else []
    rows = [np.random.default_rng(step).choice(images, batch, replace=False) for step in range(batches)]
    wall, own, others = time.perf_counter(), time.process_time(), sum(map(seconds_of, pids))
    for one in rows:
        pixels.read(one)
    wall, own, others = time.perf_counter() - wall, time.process_time() - own, sum(map(seconds_of, pids)) - others
    count = batch * batches
    return count / wall, (own + others) / wall, 1000 * own / count


@click.command()
@click.option("--images", default=640, show_default=True)
@click.option("--batch-size", default=64, show_default=True)
@click.option("--batches", default=6, show_default=True)
@click.option("--processes", multiple=True, default=(1, 2), show_default=True)
@click.option("--repeats", default=3, show_default=True)
def main(images: int, batch_size: int, batches: int, processes: tuple[int, ...], repeats: int) -> None:
    """Print one table."""
    found: dict[str, list[tuple[float, float, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        base = write(Path(folder), images)
        for _ in range(repeats):
            for count in (0, *processes):
                with decoded_elsewhere(base, count) if count else nullcontext(base) as opened:
                    pixels = opened.augmented(("crop", "flip", "randaugment"), 0, 0)
                    pixels.read(np.arange(batch_size))
                    name = f"{count} processes" if count else "threads"
                    found.setdefault(name, []).append(timed(pixels, batch_size, batches, images))
    table = Table("", "photographs/s", "processor/wall", "here, ms", box=None)
    for name, values in found.items():
        photographs, ratio, here = np.median(values, axis=0)
        table.add_row(name, f"{photographs:.0f}", f"{ratio:.2f}", f"{here:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
