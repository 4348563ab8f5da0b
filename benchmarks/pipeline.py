"""Seconds and peak memory of every stage, and what a step of AdapOffQuin costs beside an online one.

    python benchmarks/pipeline.py demo
    python benchmarks/pipeline.py demo f8k_vsepp --data-root data

Stages that are not made yet are made first, by Luigi. Steps are timed in turn in this process, on the batches that
the second round would see, the median of each; the paper's ratio for VSRN is 1.604 s / 1.096 s = 1.46.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parent.parent)  # beside this file, `pipeline` is a benchmark

import click
import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from models import build_model
from pipeline.chain import Chain
from pipeline.config import Loss, online_version
from pipeline.data.batches import epoch_order, step_rng
from pipeline.mining.sampler import Sampler
from pipeline.mining.table import read_table
from pipeline.produce.inputs import model_options, open_pairs
from pipeline.settings import configured_path, read_project_settings
from pipeline.stages import plan
from pipeline.training.loop import draw_groups, make_objective, take_step
from pipeline.training.step import read_batch

console = Console()


@click.command()
@click.argument("experiments", nargs=-1, required=True)
@click.option("--data-root", default="")
@click.option("--artifact-root", default="")
@click.option("--steps", default=15, show_default=True, help="Timed steps of each loss, after three of warming up.")
@click.option("--threads", default=0, help="torch's threads; 0 leaves torch's choice.")
def main(experiments: tuple[str, ...], data_root: str, artifact_root: str, steps: int, threads: int) -> None:
    """Print the figures of each experiment."""
    read_project_settings()
    if threads:
        torch.set_num_threads(threads)
    roots = {"data_root": configured_path("data_root", data_root)}
    roots["artifact_root"] = configured_path("artifact_root", artifact_root)
    for experiment in experiments:
        make(experiment, data_root, artifact_root)
        chain = plan(experiment, **roots)
        show_stages(chain)
        show_step_cost(chain, steps)


def make(experiment: str, data_root: str, artifact_root: str) -> None:
    program = [str(Path(sys.executable).parent / "luigi"), "--module", "tasks"]
    chosen = [*(["--data-root", data_root] if data_root else [])]
    chosen += ["--artifact-root", artifact_root] if artifact_root else []
    for task in ("SecondRound", "Control"):
        subprocess.run([*program, task, "--experiment", experiment, *chosen], check=True)


def show_stages(chain: Chain) -> None:
    table = Table("stage", "seconds", "peak MB", title=chain.experiment.name, title_justify="left", box=None)
    stages = {**(chain.teacher.stages if chain.teacher else {}), **chain.stages}
    for stage, artifact in stages.items():
        if artifact.exists():
            manifest = artifact.manifest()
            table.add_row(stage, f"{manifest['seconds']:.1f}", str(manifest["peak_memory_mb"]))
    console.print(table)


def show_step_cost(chain: Chain, steps: int) -> None:
    """The two losses step by step in turn, so that a machine that slows down slows both."""
    pairs = open_pairs(chain, "train")
    split, training = pairs.split, chain.experiment.student
    sampling = chain.experiment.sampling.model_dump()
    sampler = Sampler(read_table(chain["hard_negatives"].path / "table"), split.image_of, split.captions_of, **sampling)
    losses: dict[str, Loss] = {"online": online_version(training.loss), training.loss.name: training.loss}
    seconds: dict[str, list[float]] = {name: [] for name in losses}
    parts = {}
    for name, loss in losses.items():
        torch.manual_seed(0)
        model = build_model(chain.experiment.model.name, **model_options(chain)).train()
        optimizer = torch.optim.Adam(model.parameters(), lr=training.learning_rate)
        parts[name] = (model, optimizer, list(model.parameters()), make_objective(loss))
    order = epoch_order(split.caption_count, seed=0, epoch=0)
    for step in range(steps + 3):
        captions = order[step * training.batch_size :][: training.batch_size]
        for name, (model, optimizer, parameters, objective) in parts.items():
            started = time.perf_counter()
            groups, _ = draw_groups(pairs, sampler, objective, captions, step_rng(seed=0, epoch=0, step=step))
            batch = read_batch(pairs, groups)
            take_step(model, optimizer, parameters, batch, objective, training.gradient_clip)
            seconds[name].append(time.perf_counter() - started)
    medians = {name: float(np.median(values[3:])) for name, values in seconds.items()}
    ratios = np.array(seconds[training.loss.name][3:]) / np.array(seconds["online"][3:])
    for name, median in medians.items():
        console.print(f"  {name} step: {1000 * median:.0f} ms", highlight=False)
    low, high = np.percentile(ratios, [25, 75])
    console.print(
        f"  ratio {np.median(ratios):.2f} (quartiles {low:.2f} to {high:.2f}), batch {training.batch_size}, "
        f"{torch.get_num_threads()} threads\n",
        highlight=False,
    )


if __name__ == "__main__":
    main()
