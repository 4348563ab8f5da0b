"""Seconds and peak memory of every stage.

    python benchmarks/pipeline.py demo
    python benchmarks/pipeline.py demo f8k_vsepp --data-root data

Stages that do not exist yet are made first, by Luigi. For the cost of a step of each loss see benchmarks/training.py.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parent.parent)  # beside this file, `pipeline` is a benchmark

import click
from rich.console import Console
from rich.table import Table

from aoq.pipeline.planning.chain import Chain
from aoq.pipeline.planning.planner import plan
from aoq.pipeline.settings import configured_path, read_shipped_settings

console = Console()


@click.command()
@click.argument("experiments", nargs=-1, required=True)
@click.option("--data-root", default="")
@click.option("--artifact-root", default="")
def main(experiments: tuple[str, ...], data_root: str, artifact_root: str) -> None:
    """Print the figures of each experiment."""
    read_shipped_settings()
    roots = {"data_root": configured_path("data_root", data_root)}
    roots["artifact_root"] = configured_path("artifact_root", artifact_root)
    for experiment in experiments:
        make(experiment, data_root, artifact_root)
        chain = plan(experiment, **roots)
        show_stages(chain)


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


if __name__ == "__main__":
    main()
