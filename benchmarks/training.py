"""Cost of a step of each approach relative to the online loss, for each model, at the same batch size.

    python benchmarks/training.py demo
    python benchmarks/training.py f8k_vsrn f8k_scan f8k_vsepp --data-root data
    python benchmarks/training.py f8k_vsepp --data-root data --negatives 1 --negatives 4 --negatives 8

Steps of all approaches are timed in turn in this process, on the same captions, so that a machine that slows down
slows all; the table gives the median of each and of its ratios to the adjacent online step, with their quartiles.
Negatives are drawn from lists at random, which cost what mined ones cost, so that nothing is trained first. The table
also has reading and encoding the anchors alone, with gradients: if that is the fraction e of an online step, one of
three groups takes at least 1 + 2e times as long. The paper's, for VSRN at its full size on a GTX 1080 Ti: 1.36
(OffTri), 1.42 (OffQuin), 1.46 (AdapOffQuin). With `--negatives` it compares InfoNCE without a table, and with this many
negatives for each anchor that the whole batch shares. Memory is a step's peak beyond what was resident before it.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parent.parent)  # beside this file, `pipeline` is a benchmark

import click
import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from aoq.models import build_model
from aoq.models.base import MatchingModel
from aoq.pipeline.config.losses import AdaptiveLoss, Loss, LossSection, OfflineLoss, OnlineLoss
from aoq.pipeline.data.batches import PairData, epoch_order, step_rng
from aoq.pipeline.engine import return_freed_memory
from aoq.pipeline.settings import configured_path, read_shipped_settings
from aoq.pipeline.stages.chain import Chain
from aoq.pipeline.stages.plan import plan
from aoq.pipeline.stages.splits import model_options, open_pairs
from aoq.pipeline.training.batches import matched, read_batch
from aoq.pipeline.training.drawable import Drawable
from aoq.pipeline.training.optimizer import make_optimizer
from aoq.pipeline.training.sampler import Sampler
from aoq.pipeline.training.step import Objective, make_objective, take_step

APPROACHES: dict[str, Loss] = {
    "online": OnlineLoss(name="online"),
    "OffTri": OfflineLoss(name="offtri"),
    "OffQuin": OfflineLoss(name="offquin"),
    "AdapOffQuin": AdaptiveLoss(name="adapoffquin"),
    "companions as anchors": AdaptiveLoss(name="adapoffquin", companions="anchors"),
}
INFONCE = LossSection.model_validate({"name": "infonce"})
Ways = Mapping[str, tuple[Loss, int | None]]
"""By name: a loss, and the number of shared negatives."""
WARM_UP = 3


@dataclass
class Trained:
    """One approach in progress: a model of its own, from the same weights as the others."""

    loss: Loss
    sampler: Sampler
    objective: Objective
    model: MatchingModel
    optimizer: torch.optim.Optimizer
    seconds: list[float] = field(default_factory=list)
    megabytes: float = 0.0


@click.command()
@click.argument("experiments", nargs=-1, required=True)
@click.option("--data-root", default="")
@click.option("--artifact-root", default="")
@click.option("--steps", default=15, show_default=True, help=f"Timed steps of each, after {WARM_UP} of warming up.")
@click.option("--batch-size", default=0, help="0 takes the experiment's.")
@click.option("--threads", default=0, help="torch's threads; 0 leaves torch's choice.")
@click.option("--device", default="cpu", show_default=True)
@click.option("--negatives", multiple=True, type=int, help="Shared negatives per anchor, instead of the approaches.")
def main(
    experiments: tuple[str, ...],
    data_root: str,
    artifact_root: str,
    steps: int,
    batch_size: int,
    threads: int,
    device: str,
    negatives: tuple[int, ...],
) -> None:
    """Print one table for all experiments."""
    read_shipped_settings()
    if threads:
        torch.set_num_threads(threads)
    folders = {"data_root": data_root, "artifact_root": artifact_root}
    roots = {name: configured_path(name, given) for name, given in folders.items()}
    table = Table("", "", "step, ms", "to the first", "quartiles", "MB", box=None)
    ways = {name: (loss, None) for name, loss in APPROACHES.items()}
    if negatives:
        ways = {"infonce": (INFONCE.model_copy(update={"offline_columns": False}), None)}
        ways |= {f"{count} shared": (INFONCE, count) for count in negatives}
    for column in table.columns:
        column.no_wrap = True
    for experiment in experiments:
        make_dataset(experiment, {name: given for name, given in folders.items() if given})
        chain = plan(experiment, **roots)
        size = batch_size or chain.experiment.student.batch_size
        name = f"{chain.experiment.model.name}, batch {size}"
        for approach, values in time_steps(chain, ways, size, steps, torch.device(device)).items():
            table.add_row(name, approach, *values)
            name = ""
    console = Console()
    console.print(table)
    console.print(f"{torch.get_num_threads()} threads, {device}, {steps} steps of each in turn", highlight=False)


def make_dataset(experiment: str, chosen: dict[str, str]) -> None:
    luigi = [str(Path(sys.executable).parent / "luigi"), "--module", "tasks", "Dataset", "--experiment", experiment]
    options = [word for name, given in chosen.items() for word in (f"--{name.replace('_', '-')}", given)]
    subprocess.run([*luigi, *options], check=True)


def time_steps(chain: Chain, ways: Ways, batch_size: int, steps: int, device: torch.device) -> dict[str, list[str]]:
    """Time each way: the median step in milliseconds, the median ratio to the first one and its quartiles, and MB."""
    pairs, training = open_pairs(chain, "train"), chain.experiment.student
    trained = {name: start(chain, loss, random_sampler(pairs, count), device) for name, (loss, count) in ways.items()}
    orders = partial(epoch_order, pairs.split.caption_count, seed=0)
    needed = (steps + WARM_UP + 1) * batch_size
    order = np.concatenate([orders(epoch=epoch) for epoch in range(1 + needed // pairs.split.caption_count)])
    encoding: list[float] = []
    for step in range(steps + WARM_UP + 1):
        captions = order[step * batch_size :][:batch_size]
        for one in trained.values():
            if step == steps + WARM_UP:  # not timed: it asks for its memory anew
                return_freed_memory()
                Path("/proc/self/clear_refs").write_text("5")  # resets the peak to now
            before, began = memory_mb("VmRSS"), time.perf_counter()
            rng = step_rng(seed=0, epoch=0, step=step)
            draw = one.sampler.draw_for(one.loss.draws, captions, rng, 0)
            batch = read_batch(pairs, draw).to(device)
            figures = take_step(one.model, one.optimizer, batch, one.objective, training.gradient_clip)
            float(figures["gradient_norm"])  # waits for a GPU
            one.seconds.append(time.perf_counter() - began)
            one.megabytes = memory_mb("VmHWM") - before
            del batch
        encoding.append(seconds_to_encode(pairs, next(iter(trained.values())), captions, device))
    seconds = {name: np.array(one.seconds[WARM_UP:-1]) for name, one in trained.items()}
    seconds["anchors encoded alone"] = np.array(encoding[WARM_UP:-1])
    first = next(iter(seconds.values()))
    megabytes = {name: f"{one.megabytes:.0f}" for name, one in trained.items()}
    return {name: [*describe(own, own / first), megabytes.get(name, "")] for name, own in seconds.items()}


def memory_mb(kind: str) -> float:
    """Read this process's resident memory, or its peak."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(kind))
    return int(line.split()[1]) / 1024


def seconds_to_encode(pairs: PairData, one: Trained, captions: np.ndarray, device: torch.device) -> float:
    """Seconds for a batch of anchors, with the gradients of any loss."""
    began = time.perf_counter()
    batch = read_batch(pairs, matched(pairs, captions)).to(device)
    codes = [one.model.encode_images(batch.images).vectors, one.model.encode_captions(batch.captions).vectors]
    torch.autograd.backward(codes, [torch.ones_like(code) for code in codes])
    float(codes[0].detach().flatten()[0])
    taken = time.perf_counter() - began
    one.optimizer.zero_grad(set_to_none=True)
    return taken


def describe(seconds: np.ndarray, ratios: np.ndarray) -> list[str]:
    low, middle, high = np.percentile(ratios, [25, 50, 75])
    return [f"{1000 * np.median(seconds):.0f}", f"{middle:.2f}", f"{low:.2f} to {high:.2f}"]


def start(chain: Chain, loss: Loss, sampler: Sampler, device: torch.device) -> Trained:
    torch.manual_seed(0)
    model = build_model(chain.experiment.model.name, **model_options(chain)).to(device).train()
    return Trained(loss, sampler, make_objective(loss), model, make_optimizer(model, chain.experiment.student))


def random_sampler(pairs: PairData, negatives: int | None, h: int = 20) -> Sampler:
    """Sample from lists of random negatives: rows that are not the anchor's own."""
    split, rng = pairs.split, np.random.default_rng(0)
    images, image_of = split.image_count, split.image_of
    other = (image_of[:, None] + rng.integers(1, images, size=(len(image_of), h))) % images
    captions = rng.integers(0, len(image_of), size=(images, h))
    while (own := image_of[captions] == np.arange(images)[:, None]).any():
        captions[own] = rng.integers(0, len(image_of), size=int(own.sum()))
    lists = Drawable(captions.astype(np.int32)), Drawable(other.astype(np.int32))
    return Sampler(*lists, image_of, negatives=negatives)


if __name__ == "__main__":
    main()
