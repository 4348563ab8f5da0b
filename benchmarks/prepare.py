"""Images per second of `aoq prepare` and its memory, compared with a plain loop, a DataLoader and the model alone.

    python benchmarks/prepare.py [--images 512] [--width 500] [--rounds 3] [--threads 0]

All extract the same float16 features with the same EfficientNet-Lite0 from the same JPEGs into a memory-mapped array:

    loop        one image at a time: Pillow, resize, normalise, model
    loader      torch's DataLoader, normalised floats in batches, the better of its workers 0, 1, … cores
    model       the model alone, on normalised batches that are in memory
    ours        aoq prepare, without thumbnails; and `with pictures`

The ways take turns, `--rounds` times; medians of wall seconds, and of core seconds (with those of worker processes),
which depend less on other load. Ours opens the extractor each time, hashes each image, writes captions, boxes and
ids, and saves its progress.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

sys.path.insert(0, str(Path(__file__).parent))
from memory import Peak

from aoq.pipeline.config.dataset import Source
from aoq.pipeline.engine import Engine
from aoq.pipeline.prepare.extractors import EFFICIENTNET, open_extractor
from aoq.pipeline.prepare.prepare import prepare_folder

BATCH = 4
"""Batch of the rivals on a CPU: with 32 they take twice as long."""
MEAN, STD = 127 / 255, 128 / 255


def write_photographs(folder: Path, count: int, width: int) -> list[Path]:
    """Write JPEGs with edges, gradients and noise, as large as photographs of their size."""
    rng, paths = np.random.default_rng(0), []
    with (folder / "table.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["image", "caption", "split"])
        for n in range(count):
            coarse = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8))
            smooth = np.asarray(coarse.resize((width, width * 3 // 4), Image.Resampling.BICUBIC)).astype(np.int16)
            pixels = np.clip(smooth + rng.integers(-12, 13, smooth.shape), 0, 255).astype(np.uint8)
            paths.append(folder / f"{n:06}.jpg")
            Image.fromarray(pixels).save(paths[-1], quality=90)
            rows.writerow([paths[-1].name, f"caption {n}", "train"])
    return paths


def floats(path: Path) -> torch.Tensor:
    """Load an image as a training script does."""
    image = Image.open(path).convert("RGB").resize((224, 224), Image.Resampling.BICUBIC)
    return (torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255 - MEAN) / STD


class Photographs(Dataset):
    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, place: int) -> torch.Tensor:
        return floats(self.paths[place])


@torch.inference_mode()
def by_loop(paths: list[Path], extractor, output: np.ndarray) -> None:
    for n, path in enumerate(paths):
        output[n] = extractor.encode(floats(path)[None].contiguous(memory_format=torch.channels_last))[0].half().numpy()


@torch.inference_mode()
def by_loader(paths: list[Path], extractor, output: np.ndarray, workers: int) -> None:
    start = 0
    for images in DataLoader(Photographs(paths), BATCH, num_workers=workers, prefetch_factor=4 if workers else None):
        found = extractor.encode(images.contiguous(memory_format=torch.channels_last))
        output[start : start + len(found)] = found.half().numpy()
        start += len(found)


@torch.inference_mode()
def by_model(batch: torch.Tensor, extractor, output: np.ndarray) -> None:
    for start in range(0, len(output), BATCH):
        part = output[start : start + BATCH]
        part[:] = extractor.encode(batch[: len(part)]).half().numpy()


def ours(folder: Path, out: Path, engine: Engine, *, thumbnails: bool) -> None:
    source = Source(path=str(folder / "table.csv"))
    prepare_folder(source, out, out.with_name("work"), engine, thumbnails=thumbnails, report=lambda *_: None)


def seconds(work: Callable[[], None]) -> tuple[float, float]:
    """Measure wall seconds, and seconds of all cores."""
    clock, before = time.perf_counter(), sum(os.times()[:4])
    work()
    return time.perf_counter() - clock, sum(os.times()[:4]) - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=512)
    parser.add_argument("--width", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=0)
    options = parser.parse_args()
    engine = Engine("cpu", options.threads)
    device = engine.torch_device()
    extractor = open_extractor(EFFICIENTNET)
    extractor.to(device)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = write_photographs(folder, options.images, options.width)
        shape = (options.images, extractor.tokens, extractor.dims)
        output = np.lib.format.open_memmap(folder / "rival.npy", "w+", np.float16, shape)
        ready = torch.stack([floats(path) for path in paths[:BATCH]]).contiguous(memory_format=torch.channels_last)
        by_model(ready, extractor, output[:BATCH])
        made = (folder / f"ours{n}" for n in range(10**6))
        ways: dict[str, Callable[[], None]] = {
            "loop": lambda: by_loop(paths, extractor, output),
            **{
                f"loader, {workers} workers": lambda workers=workers: by_loader(paths, extractor, output, workers)
                for workers in range(len(os.sched_getaffinity(0)) + 1)
            },
            "model": lambda: by_model(ready, extractor, output),
            "ours": lambda: ours(folder, next(made), engine, thumbnails=False),
            "with pictures": lambda: ours(folder, next(made), engine, thumbnails=True),
        }
        taken = {way: [] for way in ways}
        for _ in range(options.rounds):
            for way, work in ways.items():
                taken[way].append(seconds(work))
        wall, cores = ({way: median(times[of] for times in taken[way]) for way in ways} for of in (0, 1))
        for way in ways:
            print(
                f"{way:20} {options.images / wall[way]:7.1f} images/s ({wall['model'] / wall[way]:4.0%} of the model)"
                f"   {1000 * cores[way] / options.images:6.1f} core ms an image"
            )
        for what, times in (("images/s", wall), ("core seconds", cores)):
            best = min(times[way] for way in ways if way.startswith("loader"))
            print(f"{what}: ours is {best / times['ours']:.2f} of the best DataLoader")
        for count in (options.images // 4, options.images):
            part = folder / f"part{count}"
            part.mkdir()
            write_photographs(part, count, options.width)
            with Peak() as peak:
                ours(part, part / "made", engine, thumbnails=False)
            print(f"memory beyond the start, {count} images: {peak.bytes / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
