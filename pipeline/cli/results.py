"""`aoq results`: round one, the control and round two side by side."""

from __future__ import annotations

from typing import Any

import click
from rich.console import Console
from rich.table import Table

from pipeline.artifact import Artifact
from pipeline.cli.experiment import experiment_chain
from pipeline.evaluation.retrieval import K
from pipeline.stages import Chain

ROUNDS = {"first_round": "round one", "control": "control", "second_round": "round two"}


@click.command()
@experiment_chain
def results(chain: Chain) -> None:
    """Dev recalls of EXPERIMENT's rounds; the control is the same student and steps on the online loss alone."""
    rows = [(title, chain[stage]) for stage, title in ROUNDS.items()]
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("", no_wrap=True)
    for column in [f"{direction}@{k}" for direction in ("i2t", "t2i") for k in K] + ["rsum"]:
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("model", no_wrap=True)
    table.add_column("loss", no_wrap=True)
    for title, artifact in rows:
        table.add_row(title, *_figures(artifact))
    console = Console()
    console.print(table)
    if chain["second_round"].exists():
        console.print(f"\nartefacts: {chain['second_round'].root}", highlight=False, soft_wrap=True)


def _figures(artifact: Artifact) -> list[str]:
    if not artifact.exists():
        return [""] * (2 * len(K) + 2) + ["missing"]
    manifest: dict[str, Any] = artifact.manifest()
    metrics = manifest["metrics"]
    recalls = [f"{metrics[f'{direction}_r{k}']:.1f}" for direction in ("i2t", "t2i") for k in K]
    ingredients = artifact.recipe["ingredients"]
    training = ingredients.get("training")
    how = [ingredients["model"]["name"], training["loss"]["name"] if training else "imported"]
    return [*recalls, f"{metrics['rsum']:.1f}", *how]
