"""Gain of round two: control, OffTri, OffQuin and AdapOffQuin over seeds, at equal steps.

    python benchmarks/rounds.py f8k_scan --data-root data --seeds 3 --jobs 2

Untrained arms are trained first, by Luigi, `--jobs` at a time on one thread each. The difference is to the control of
the same seed; if the experiment names a `teacher`, its table serves all seeds.
"""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parent.parent)  # beside this file, `pipeline` is a benchmark

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from aoq.pipeline.evaluation.retrieval import K
from aoq.pipeline.settings import configured_path, read_shipped_settings
from aoq.pipeline.stages.plan import plan

COLUMNS = [f"{direction}_r{k}" for direction in ("i2t", "t2i") for k in K] + ["rsum"]
LOSSES = ("offtri", "offquin", "adapoffquin")


@click.command()
@click.argument("experiment")
@click.option("--seeds", default=3, show_default=True)
@click.option("--jobs", default=1, show_default=True, help="Trainings at a time, one thread each.")
@click.option("--losses", default=",".join(LOSSES), show_default=True)
@click.option("--override", default="", help="Changes that every arm shares.")
@click.option("--data-root", default="")
@click.option("--artifact-root", default="")
def main(
    experiment: str, seeds: int, jobs: int, losses: str, override: str, data_root: str, artifact_root: str
) -> None:
    """Print mean and standard deviation of each arm's dev recalls."""
    read_shipped_settings()
    arms: dict[str, list[tuple[str, str]]] = {"round one": [], "control": []}
    arms |= {loss: [] for loss in losses.split(",")}
    for seed in range(seeds):
        shared = ", ".join(part for part in (f"seed={seed}", override) if part)
        arms["control"].append(("Control", shared))
        for loss in losses.split(","):
            arms[loss].append(("SecondRound", f'{shared}, second_round.loss.name="{loss}"'))
    options = ["--data-root", str(configured_path("data_root", data_root))]
    options += ["--artifact-root", artifact_root] if artifact_root else []

    def train(job: tuple[str, str]) -> None:
        task, chosen = job
        command = [str(Path(sys.executable).parent / "luigi"), "--module", "tasks", task, "--experiment", experiment]
        subprocess.run([*command, "--override", chosen, "--engine-threads", "1", *options], check=True)

    def metrics(stage: str, chosen: str) -> dict[str, float]:
        roots = {"data_root": configured_path("data_root", data_root)}
        chain = plan(
            experiment, override=chosen, artifact_root=configured_path("artifact_root", artifact_root), **roots
        )
        return dict(chain[stage].manifest()["metrics"])

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(train, [job for some in arms.values() for job in some]))
    results = {
        arm: [metrics("control" if task == "Control" else "second_round", chosen) for task, chosen in some]
        for arm, some in arms.items()
    }
    results["round one"] = [metrics("first_round", chosen) for _, chosen in arms["control"]]
    show(experiment, results)


def show(experiment: str, results: dict[str, list[dict[str, float]]]) -> None:
    table = Table(title=f"{experiment}, {len(results['control'])} seeds", title_justify="left", box=None)
    table.add_column("", no_wrap=True)
    for column in [*COLUMNS, "to control"]:
        table.add_column(column.replace("_r", "@"), justify="right", no_wrap=True)
    for arm, runs in results.items():
        values = {column: np.array([run[column] for run in runs]) for column in COLUMNS}
        cells = [f"{value.mean():.1f}" for value in values.values()]
        cells[-1] += f" ± {values['rsum'].std(ddof=1):.1f}" if len(runs) > 1 else ""
        gains = values["rsum"] - np.array([run["rsum"] for run in results["control"]])
        spread = f" ± {gains.std(ddof=1):.1f}" if len(runs) > 1 else ""
        table.add_row(arm, *cells, "" if arm in ("round one", "control") else f"{gains.mean():+.1f}{spread}")
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
