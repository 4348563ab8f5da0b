"""Cost of taking a step in chunks, and gain of sharing it among processes; SCAN, generated features.

    python benchmarks/parts.py                 # a batch of 1,024 in chunks, beside the same at once
    python benchmarks/parts.py --processes 2   # a batch of 64 by two processes of one thread, beside one

Each way runs in processes of its own, in turn, `--repeat` times, so that a machine that slows down slows both; the
last line has the fastest round of each. If others use the machine, processor time estimates the time on free cores,
without the waits of one process for the other. Memory is that of the steps beyond that before the first.
"""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
import time
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parent.parent)  # beside this file, `pipeline` is a benchmark

import click
import numpy as np
import torch
from torch import distributed as dist

from aoq.models import build_model
from aoq.pipeline.config.losses import LossSection, OnlineLoss
from aoq.pipeline.data.batches import PairData, TokenisedCaptions, epoch_order
from aoq.pipeline.data.folder import Split
from aoq.pipeline.training.batches import matched, read_batch
from aoq.pipeline.training.chunks import Cut
from aoq.pipeline.training.processes import Processes
from aoq.pipeline.training.step import make_objective, take_step

IMAGES, CAPTIONS_EACH, VOCABULARY = 1000, 5, 3000
REGIONS, FEATURES, EMBEDDING, WORDS = 24, 1280, 128, 128
"""Sizes of configs/f8k_scan.toml."""


def generated() -> PairData:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(IMAGES, REGIONS, FEATURES)).astype(np.float16)
    lengths = np.clip(rng.normal(12, 4, IMAGES * CAPTIONS_EACH).astype(int), 4, 30)
    tokens = TokenisedCaptions(
        rng.integers(4, VOCABULARY, lengths.sum()).astype(np.int32), np.concatenate([[0], lengths.cumsum()])
    )
    image_of = np.repeat(np.arange(IMAGES, dtype=np.int32), CAPTIONS_EACH)
    return PairData(Split("train", features, [""] * len(image_of), image_of, [""] * IMAGES), tokens)


LOSSES = {"online": OnlineLoss(name="online"), "infonce": LossSection.model_validate({"name": "infonce"})}
"""Losses with gradients at a few entries of the matrix, and at all."""


def timed(rank: int, count: int, folder: str, chunk: int | None, loss: str, batch_size: int, steps: int) -> None:
    """Run one process; it leaves seconds per pair and the megabytes that the steps added."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if count > 1:
        dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=count)
    sizes = {"feature_size": FEATURES, "vocabulary_size": VOCABULARY, "embedding_size": EMBEDDING, "word_size": WORDS}
    pairs, model = generated(), build_model("scan", **sizes, direction="t2i", aggregation="Mean")
    cut, objective = Cut(chunk, Processes(rank, count)), make_objective(LOSSES[loss])
    optimizer, order = torch.optim.Adam(model.parameters()), epoch_order(len(pairs.tokens.lengths), seed=0, epoch=0)
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak to now
    before, seconds = peak_mb(), []
    for number in range(steps + 1):
        rows = np.roll(order, -number * batch_size)[:batch_size]
        started = time.perf_counter(), time.process_time()
        batch = read_batch(pairs, matched(pairs, rows), cut.rows(batch_size))
        take_step(model, optimizer, batch, objective, 2.0, cut)
        seconds.append((time.perf_counter() - started[0], time.process_time() - started[1]))
    milliseconds = 1000 * np.median(seconds[1:], axis=0) / batch_size
    np.save(f"{folder}/{rank}.npy", [*milliseconds, peak_mb() - before])
    if count > 1:
        dist.destroy_process_group()


def peak_mb() -> float:
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def measured(count: int, *given: object) -> tuple[float, ...]:
    """Milliseconds per pair, wall and processor, and megabytes, of the slowest and of the largest process."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        started = [context.Process(target=timed, args=(rank, count, folder, *given)) for rank in range(count)]
        for process in started:
            process.start()
        for process in started:
            process.join()
        return tuple(np.max([np.load(f"{folder}/{rank}.npy") for rank in range(count)], axis=0).tolist())


@click.command()
@click.option("--processes", default=1, show_default=True)
@click.option("--chunk", default=128, show_default=True, help="Where there is one process.")
@click.option("--loss", type=click.Choice([*LOSSES]), default="online", show_default=True)
@click.option("--batch-size", default=0, help="0 takes 1,024, or 64 of several processes.")
@click.option("--steps", default=0, help="Timed steps, after one of warming up; 0 takes 3, or 30.")
@click.option("--repeat", default=3, show_default=True)
def main(processes: int, chunk: int, loss: str, batch_size: int, steps: int, repeat: int) -> None:
    """Print both ways and their ratio."""
    batch_size, steps = batch_size or (1024 if processes == 1 else 64), steps or (3 if processes == 1 else 30)
    ways = {"at once, one process": (1, None)}
    ways[f"chunks of {chunk}" if processes == 1 else f"{processes} processes"] = (
        processes,
        chunk if processes == 1 else None,
    )
    found: dict[str, list[tuple[float, ...]]] = {name: [] for name in ways}
    for _ in range(repeat):
        for name, (count, part) in ways.items():
            found[name].append(measured(count, part, loss, batch_size, steps))
            print(
                "{}: {:.2f} ms a pair, {:.2f} of the processor, {:,.0f} MB".format(name, *found[name][-1]), flush=True
            )
    one, other = (np.min(rounds, axis=0) for rounds in found.values())
    time_ratio, processor_ratio, memory_ratio = other / one
    print(
        f"{loss}, batch {batch_size}: time {time_ratio:.2f} of one's, of the processor {processor_ratio:.2f}, memory "
        f"{memory_ratio:.3f}"
    )


if __name__ == "__main__":
    main()
