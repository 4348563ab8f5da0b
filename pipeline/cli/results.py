"""`aoq results`: round one, the control and round two side by side."""

from __future__ import annotations

from collections.abc import Mapping

import click
from rich.console import Console
from rich.table import Table

from pipeline.artifact import Artifact
from pipeline.chain import Chain, run_name, split_member
from pipeline.cli.experiment import experiment_chain
from pipeline.evaluation.retrieval import K

_MISSING = [""] * (2 * len(K) + 2) + ["missing"]
ROUNDS = {"first_round": "round one", "control": "control", "second_round": "round two"}
CO_TAUGHT = {"control": "control", "second_round": "co-taught"}


@click.command()
@experiment_chain
def results(chain: Chain) -> None:
    """Dev recalls of EXPERIMENT's rounds; the control is the same student and steps on the online loss alone.

    Of an ensemble: the recalls of its members and of their mean similarity, on its evaluation split.
    """
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("", overflow="fold")  # an ensemble's members may have long names
    for column in [f"{direction}@{k}" for direction in ("i2t", "t2i") for k in K] + ["rsum"]:
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("model", no_wrap=True)
    table.add_column("loss", no_wrap=True)
    is_ensemble = "evaluation" in chain.stages and bool(chain.members)
    last = chain["evaluation" if is_ensemble else "second_round"]
    rows = _ensemble_rows(chain) if is_ensemble else _round_rows(chain)
    for row in rows:
        table.add_row(*row)
    console = Console()
    console.print(table)
    if last.exists():
        console.print(f"\nartefacts: {last.root}", highlight=False, soft_wrap=True)


def _round_rows(chain: Chain) -> list[list[str]]:
    if chain.experiment.weights is not None:
        return [_row("imported", chain["second_round"])]
    rounds = ROUNDS if chain.experiment.co_teaching is None else CO_TAUGHT
    return [_row(title, chain[stage]) for stage, title in rounds.items()]


def _ensemble_rows(chain: Chain) -> list[list[str]]:
    evaluation = chain["evaluation"]
    if not evaluation.exists():
        return [[chain.experiment.name, *_MISSING]]
    manifest = evaluation.manifest()
    members = zip(chain.asked, chain.members, manifest["member_metrics"], strict=True)
    rows = [
        [run_name(*split_member(name)), *_recalls(metrics), *_how(member["second_round"])]
        for name, member, metrics in members
    ]
    return [*rows, [chain.experiment.name, *_recalls(manifest["metrics"]), "ensemble", ""]]


def _row(title: str, artifact: Artifact) -> list[str]:
    if not artifact.exists():
        return [title, *_MISSING]
    return [title, *_recalls(artifact.manifest()["metrics"]), *_how(artifact)]


def _recalls(metrics: Mapping[str, float]) -> list[str]:
    recalls = [f"{metrics[f'{direction}_r{k}']:.1f}" for direction in ("i2t", "t2i") for k in K]
    return [*recalls, f"{metrics['rsum']:.1f}"]


def _how(artifact: Artifact) -> list[str]:
    ingredients = artifact.recipe["ingredients"]
    how = "co-teaching" if "co_teaching" in ingredients else "imported"
    return [ingredients["model"]["name"], ingredients["training"]["loss"]["name"] if "training" in ingredients else how]
