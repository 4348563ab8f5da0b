"""Seconds and memory of the models' similarity, compared with a loop over captions and a padded einsum.

    python benchmarks/similarity.py
    python benchmarks/similarity.py --evaluation
    python benchmarks/similarity.py --threads 1 --clock processor       # on a machine that has other work

The rivals (`similarity_rivals.py`) form every attended vector. First, values and gradients of all are compared on a
small world. A measurement starts from codes (unit vectors) and ends with the gradients of both codes and of the
model's parameters, for a fixed random weighting of the matrix; or (`--loss online`) for the online triplet loss.
Captions have 6 to 30 tokens, 14 on average, as Flickr30K's have with <start> and <end>: a log-normal, rounded and
clipped.

Ours and its rivals have a process each and take turns, so that a machine that slows down slows all. Seconds are
medians, ratios are medians of the ratios of each turn. Memory is the peak of the first turn beyond what was resident
before it (inputs, model, a small call to warm up): resident pages, from Linux's /proc, or on a GPU what torch
allocated. A model whose loop takes long gets a part of the batch, on all sides. If the einsum would not fit into
memory, as predicted from an eighth of the batch, it is compared with ours in a separate row, at half the batch or less.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parent.parent)  # beside this file, `pipeline` is a benchmark

import click
import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from aoq.models import build_model
from aoq.models.base import Code, MatchingModel
from aoq.models.naaf import NAAF
from aoq.pipeline.embedding import SCORED_CAPTIONS, SCORED_IMAGES
from aoq.pipeline.losses.aoq import online_triplet
from aoq.pipeline.losses.similarities import Similarities
from benchmarks.similarity_rivals import RIVALS, agreement, caption_lengths, gradients, make_codes, similarity

console = Console()


@dataclass(frozen=True)
class Case:
    """A model of the registry, its options, and its part of the batch."""

    model: str
    options: dict[str, Any] = field(default_factory=dict)
    part: int = 1


CASES = {
    "SCAN t2i": Case("scan", {"direction": "t2i"}),
    "SCAN i2t": Case("scan", {"direction": "i2t"}),
    "BFAN equal": Case("bfan", {"focal": "equal"}),
    "BFAN prob": Case("bfan", {"focal": "prob"}),
    "PFAN t2i": Case("pfan"),
    "NAAF": Case("naaf"),
    "SGR": Case("sgr", part=2),
    "SAF": Case("saf", part=2),
    "IMRAM text": Case("imram", {"mode": "text"}, part=4),
    "IMRAM full": Case("imram", {"mode": "full"}, part=8),
}
EVALUATED = ("SCAN t2i", "BFAN equal")
SECONDS = ("forward", "total")


@dataclass(frozen=True)
class Work:
    """Work of one process: all captions against all images, by `ours` or a rival."""

    case: Case
    side: str
    images: int
    captions: int
    regions: int
    size: int
    device: str
    dtype: str
    threads: int
    clock: str
    compile: bool
    loss: str
    training: bool = True
    """False: as in evaluation, in tiles and without gradients."""


@dataclass(frozen=True)
class Turn:
    """Seconds of the forward part and in total, and the peak MB."""

    forward: float
    total: float
    memory: float


@click.command()
@click.option("--batch", default=128, show_default=True, help="Images, and captions.")
@click.option("--regions", default=36, show_default=True)
@click.option("--size", default=1024, show_default=True, help="Of a fragment's vector.")
@click.option("--threads", default=0, help="torch's threads; 0 leaves torch's choice.")
@click.option("--repeat", default=2, show_default=True, help="Timed turns, after one of warming up.")
@click.option("--models", "names", default="", help=f"Comma-separated, of {', '.join(CASES)}; empty: all.")
@click.option("--device", default="cpu", show_default=True, type=click.Choice(["cpu", "cuda"]))
@click.option("--dtype", default="float32", show_default=True, type=click.Choice(["float32", "tf32", "bfloat16"]))
@click.option("--compile", is_flag=True, help="torch.compile what ours does with a block.")
@click.option("--clock", default="wall", show_default=True, type=click.Choice(["wall", "processor"]))
@click.option("--loss", default="random", show_default=True, type=click.Choice(["random", "online"]))
@click.option("--evaluation", is_flag=True, help=f"1,000 images x 5,000 captions, of {' and '.join(EVALUATED)}.")
def main(names: str, batch: int, repeat: int, evaluation: bool, **how: Any) -> None:
    """Print a table: seconds forward (fwd) and forward + backward (f+b), peak MB; for rivals, ratios to ours."""
    known = EVALUATED if evaluation else tuple(CASES)
    chosen = names.split(",") if names else known
    if unknown := set(chosen) - set(known):
        raise click.UsageError(f"there are no models {sorted(unknown)}; known are {', '.join(known)}.")
    works = {name: Work(CASES[name], "ours", batch, batch, **how) for name in chosen}
    for name in chosen:
        difference = agreement(make_model(CASES[name], regions=9, size=16), regions=9, size=16)
        console.print(f"{name}: values and gradients agree to {difference:.0e} on a small world", highlight=False)
    (show_evaluation if evaluation else show_training)(works, repeat)


def show_training(works: dict[str, Work], repeat: int) -> None:
    columns = ["B", "ours\nfwd s", "\nf+b s", "\nMB"]
    columns += [header for rival in RIVALS for header in (f"{rival}\nfwd", "/ ours\nf+b", "\nMB")]
    table = _table(columns)
    for name, work in works.items():
        with console.status(name):
            for row in training_rows(work, repeat):
                table.add_row(name, *row)
    console.print(table)


def training_rows(work: Work, repeat: int) -> Iterator[list[str]]:
    """Cells after the model's name."""
    batch = work.images // work.case.part
    largest = largest_batch(replace(work, side="einsum"), batch)
    together = [(batch, list(RIVALS))] if largest == batch else [(batch, ["loop"]), (largest, ["einsum"])]
    for count, rivals in together:
        works = [replace(work, side=side, images=count, captions=count) for side in ("ours", *rivals)]
        ours, *others = take_turns(works, repeat)
        theirs = dict(zip(rivals, others, strict=True))
        cells = [[f"{median(ours, what):.2f}" for what in SECONDS], [f"{ours[0].memory:.0f}"]]
        cells += [ratios(theirs[rival], ours) if rival in theirs else [""] * 3 for rival in RIVALS]
        yield [str(count), *(cell for group in cells for cell in group)]


def largest_batch(work: Work, batch: int) -> int:
    """Halve `batch` until it should fit into three quarters of the available memory."""
    small = max(1, batch // 8)
    ((first,),) = take_turns([replace(work, images=small, captions=small)], 0)
    longest = [int(caption_lengths(count).max()) for count in (small, batch)]
    needed = first.memory * (batch / small) ** 2 * longest[1] / longest[0]
    while needed > 0.75 * available_memory(work.device):
        batch, needed = batch // 2, needed / 4
    return batch


def show_evaluation(works: dict[str, Work], repeat: int) -> None:
    """Measure ours with the whole matrix; ours and the loop with two tiles, of short and of long captions."""
    table = _table(["all tiles\ns", "\nMB", "two tiles\ns", "loop / ours\ns", "\nMB"])
    for name, work in works.items():
        with console.status(name):
            ((whole,),) = take_turns([replace(work, images=1000, captions=5000, training=False)], 0)
            tiles = replace(work, images=SCORED_IMAGES, captions=2 * SCORED_CAPTIONS, training=False)
            ours, loop = take_turns([tiles, replace(tiles, side="loop")], repeat)
        cells = [f"{whole.total:.1f}", f"{whole.memory:.0f}", f"{median(ours, 'total'):.2f}"]
        table.add_row(name, *cells, *ratios(loop, ours)[1:])
    console.print(table)


def take_turns(works: list[Work], repeat: int) -> list[list[Turn]]:
    """Take the turns of each work: the first, which warms up, and `repeat` more."""
    context, sides = multiprocessing.get_context("spawn"), []
    turns: list[list[Turn]] = [[] for _ in works]
    for work in works:
        here, there = context.Pipe()
        process = context.Process(target=serve, args=(there, work), daemon=True)
        process.start()
        there.close()
        sides.append((here, process))
    for connection, _ in sides:
        connection.recv()  # a process that is still starting would slow another's first turn
    for _ in range(repeat + 1):
        for (connection, _), taken in zip(sides, turns, strict=True):
            connection.send("turn")
            taken.append(connection.recv())
    for connection, process in sides:
        connection.close()
        process.join()
    return turns


def serve(connection: Connection, work: Work) -> None:
    """Take a turn on each request, until the other end is closed."""
    Path("/proc/self/oom_score_adj").write_text("1000")  # if memory runs out, kill this process first
    if work.threads:
        torch.set_num_threads(work.threads)
    if work.dtype == "tf32":
        torch.set_float32_matmul_precision("high")
    model = make_model(work.case, work.regions, work.size).to(work.device).train(work.training)
    if work.compile and work.side == "ours":
        model.compare = torch.compile(model.compare, dynamic=True)
    images, captions = make_codes(work.images, work.captions, work.regions, work.size, device=work.device)
    weights = torch.randn(work.images, work.captions, device=work.device)
    take_turn(work, model, images[:4], captions[:4], weights[:4, :4])
    connection.send("ready")
    try:
        while connection.recv():
            connection.send(take_turn(work, model, images, captions, weights))
    except EOFError:
        return


def take_turn(work: Work, model: MatchingModel, images: Code, captions: Code, weights: Tensor) -> Turn:
    before, times = start_memory(work.device), [now(work)]
    with torch.autocast(work.device, torch.bfloat16, enabled=work.dtype == "bfloat16"):
        if work.training:
            result = similarity(work.side, model, images, captions)
        else:
            evaluate(work, model, images, captions)
    times.append(now(work))
    if work.training:
        total = (result * weights).sum()
        if work.loss == "online":
            own = torch.eye(len(result), dtype=torch.bool, device=result.device)
            total = online_triplet(Similarities(result, own), margin=0.2).total
        gradients(model, images, captions, total, allow_unused=True)
    times.append(now(work))
    return Turn(times[1] - times[0], times[2] - times[0], most_memory(work.device) - before)


@torch.inference_mode()
def evaluate(work: Work, model: MatchingModel, images: Code, captions: Code) -> None:
    """Evaluate in tiles, of captions of similar lengths, as `aoq.pipeline.embedding` does."""
    assert captions.mask is not None
    lengths = captions.mask.sum(1)
    for columns in lengths.argsort().split(SCORED_CAPTIONS):
        longest = int(lengths[columns].max())
        tile = Code(captions.vectors[columns, :longest], captions.mask[columns, :longest])
        for start in range(0, len(images), SCORED_IMAGES):
            similarity(work.side, model, images[start : start + SCORED_IMAGES], tile).cpu()


def make_model(case: Case, regions: int, size: int) -> MatchingModel:
    """Make a model in training mode, with almost no encoders."""
    torch.manual_seed(0)
    fixed = {"regions": regions} if case.model in ("sgr", "saf") else {}
    encoders = {"feature_size": 1, "vocabulary_size": 1, "word_size": 1, "embedding_size": size}
    model = build_model(case.model, **encoders, **fixed, **case.options).train()
    if isinstance(model, NAAF):
        model.threshold.fill_(1.5 / size**0.5)  # as in training, some regions are above it, not for every word
    return model


def now(work: Work) -> float:
    if work.device == "cuda":
        torch.cuda.synchronize()
    return time.process_time() if work.clock == "processor" else time.perf_counter()


def start_memory(device: str) -> float:
    """MB in use; the peak counts from here."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated() / 1e6
    Path("/proc/self/clear_refs").write_text("5")
    return _from_proc("/proc/self/status", "VmRSS")


def most_memory(device: str) -> float:
    return torch.cuda.max_memory_allocated() / 1e6 if device == "cuda" else _from_proc("/proc/self/status", "VmHWM")


def available_memory(device: str) -> float:
    return torch.cuda.mem_get_info()[0] / 1e6 if device == "cuda" else _from_proc("/proc/meminfo", "MemAvailable")


def _from_proc(path: str, name: str) -> float:
    """Read a figure that the kernel gives in KiB, in MB."""
    line = next(line for line in Path(path).read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024 / 1e6


def median(turns: list[Turn], what: str) -> float:
    return float(np.median([getattr(turn, what) for turn in turns[1:]]))


def ratios(theirs: list[Turn], ours: list[Turn]) -> list[str]:
    """Ratios of the seconds of the forward part and in total, and of the memory of the first turn."""
    pairs = list(zip(theirs, ours, strict=True))
    seconds = [np.median([getattr(a, what) / getattr(b, what) for a, b in pairs[1:]]) for what in SECONDS]
    return [f"{ratio:.1f}" for ratio in (*seconds, pairs[0][0].memory / pairs[0][1].memory)]


def _table(columns: list[str]) -> Table:
    table = Table("model", box=None)
    for column in columns:
        table.add_column(column, justify="right")
    return table


if __name__ == "__main__":
    main()
