"""Steps on a GPU at Flickr30K's sizes: the speed of each arithmetic, and whether reading holds the GPU up.

    python benchmarks/gpu.py --output gpu.md            on a machine with a GPU
    python benchmarks/gpu.py --device cpu --small       checks that this script runs

VSE++ and SCAN, AdapOffQuin, batches of 128 with 36 regions of 2,048 numbers in float16, memory-mapped, and captions of
5 to 20 words. A step alone has its batch on the device already; with reading, batches are read ahead by one thread, as
in a training. Busy: the step alone over the step with reading. Rounds are timed in turn, and the median is shown.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parent.parent)  # beside this file, `pipeline` is a benchmark

import click
import numpy as np
import torch
from numpy.lib.format import open_memmap

from aoq.models import build_model
from aoq.models.base import Captions, Images
from aoq.pipeline.config.losses import AdaptiveLoss
from aoq.pipeline.engine import products_in
from aoq.pipeline.training.batches import Batch, read_ahead
from aoq.pipeline.training.chunks import Cut
from aoq.pipeline.training.step import make_objective, take_step

MODELS = ("vsepp", "scan")
WORDS = 8000
GROUPS = 3


def read_batch(features: np.ndarray, pairs: int, is_pinned: bool, step: int) -> Batch:
    rng = np.random.default_rng(step)
    rows = rng.integers(0, len(features), GROUPS * pairs)
    lengths = torch.from_numpy(rng.integers(5, 21, GROUPS * pairs))
    words = torch.from_numpy(rng.integers(4, WORDS, (GROUPS * pairs, 20))) * (torch.arange(20) < lengths[:, None])
    images = Images(torch.from_numpy(np.asarray(features[rows])), groups=GROUPS)
    batch = Batch(images, Captions(words, lengths), torch.arange(pairs))
    return batch.pin_memory() if is_pinned else batch


def milliseconds(batches: Iterable[Batch], step: partial, device: torch.device, count: int) -> float:
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    wait()
    began = time.perf_counter()
    for batch in batches:
        step(batch=batch.to(device))
    wait()
    return 1000 * (time.perf_counter() - began) / count


def rows_of(
    features: np.ndarray, pairs: int, embedding_size: int, device: torch.device, steps: int, repeats: int
) -> Iterator[str]:
    is_gpu = device.type == "cuda"
    for name in MODELS:
        sizes = {"feature_size": features.shape[2], "vocabulary_size": WORDS, "embedding_size": embedding_size}
        found: dict[str, tuple[list[float], list[float]]] = {}
        for precision in ("float32", "tf32", "bfloat16") if is_gpu else ("float32", "bfloat16"):
            torch.manual_seed(0)
            model = build_model(name, **sizes).to(device)
            optimizer = torch.optim.Adam(model.parameters(), lr=2e-4)
            objective = make_objective(AdaptiveLoss(name="adapoffquin"))
            cut = Cut(in_bfloat16=precision == "bfloat16")
            step = partial(take_step, model, optimizer, objective=objective, clip=2.0, cut=cut)
            make = partial(read_batch, features, pairs, is_gpu)
            there = make(0).to(device)
            alone, reading = found[precision] = [], []
            with products_in(precision):
                milliseconds([there] * 3, step, device, 3)
                for _ in range(repeats):
                    alone.append(milliseconds([there] * steps, step, device, steps))
                    reading.append(milliseconds(read_ahead(make, range(steps), 1), step, device, steps))
        base = np.median(found["float32"][0])
        for precision, (alone, reading) in found.items():
            once, read = np.median(alone), np.median(reading)
            yield f"| {name} | {precision} | {once:.1f} | {base / once:.2f} | {read:.1f} | {once / read:.0%} |"


@click.command()
@click.option("--device", "name", default="cuda", show_default=True)
@click.option("--steps", default=30, show_default=True)
@click.option("--repeats", default=5, show_default=True)
@click.option("--small", is_flag=True, help="Sizes that a CPU manages.")
@click.option("--output", type=click.Path(path_type=Path), help="Write the page there, too.")
def main(name: str, steps: int, repeats: int, small: bool, output: Path | None) -> None:
    device = torch.device(name)
    pairs, images, shape, embedding_size = (8, 100, (6, 32), 16) if small else (128, 4000, (36, 2048), 1024)
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else name
    page = [f"# Steps on {where}, torch {torch.__version__}", ""]
    page += [
        "| model | precision | step alone, ms | float32 over it | with reading, ms | busy |",
        "|---|---|---|---|---|---|",
    ]
    with tempfile.TemporaryDirectory() as folder:
        features = open_memmap(Path(folder) / "features.npy", "w+", np.float16, (images, *shape))
        for row in range(images):
            features[row] = np.random.default_rng(row % 50).normal(size=shape)
        page += rows_of(features, pairs, embedding_size, device, steps, repeats)
    text = "\n".join(page) + "\n"
    click.echo(text)
    if output is not None:
        output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
