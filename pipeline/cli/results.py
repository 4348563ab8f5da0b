"""`aoq results`: round one, the control and round two side by side, or a study."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from aoq.pipeline.artifact import Artifact
from aoq.pipeline.cli.annotations import show_annotations
from aoq.pipeline.cli.experiment import override, roots
from aoq.pipeline.cli.study import show_study
from aoq.pipeline.config.dataset import Evaluation
from aoq.pipeline.evaluation.attention import SCORES
from aoq.pipeline.evaluation.retrieval import K
from aoq.pipeline.planning.chain import Chain
from aoq.pipeline.planning.planner import plan
from aoq.pipeline.planning.study import plan_study

_MISSING = [""] * (2 * len(K) + 2) + ["missing"]
ROUNDS = {"first_round": "round one", "control": "control", "second_round": "round two"}
CO_TAUGHT = {"control": "control", "second_round": "co-taught"}


@click.command()
@click.argument("experiment", required=False)
@override
@click.option("--study", default="", help="A study, in place of EXPERIMENT: its arms on its models over its seeds.")
@click.option("--model", "models", multiple=True, help="Of a study: only this one; give it as often as you like.")
@click.option("--arm", "arms", multiple=True, help="Likewise.")
@roots
def results(
    experiment: str | None,
    override: str,
    study: str,
    models: tuple[str, ...],
    arms: tuple[str, ...],
    folders: dict[str, Path],
) -> None:
    """Recalls of EXPERIMENT's rounds, or a study.

    They are of the dev split; the control is the same student and steps on the online loss alone. After an evaluation
    on another split (or in folds) its recalls follow, and what else is known of the split: how well the student
    attends, metrics of many right answers, agreement with people (docs/evaluation.md). An ensemble has the recalls of
    its members and of their mean similarity, on its evaluation split; a --study its table, or what there is of it.
    """
    if bool(experiment) == bool(study):
        raise click.UsageError("name an EXPERIMENT, or a --study.")
    if study:
        if override:
            raise click.UsageError("--override is for an EXPERIMENT; a study's file says what its arms change.")
        show_study(plan_study(study, **folders), models, arms)
        return
    if models or arms:
        raise click.UsageError("--model and --arm are for a --study.")
    _show_rounds(plan(str(experiment), override=override, **folders))


def _show_rounds(chain: Chain) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("", overflow="fold")  # an ensemble's members may have long names
    for column in [f"{direction}@{k}" for direction in ("i2t", "t2i") for k in K] + ["rsum"]:
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("model", no_wrap=True)
    table.add_column("loss", no_wrap=True)
    for row in _ensemble_rows(chain) if chain.is_ensemble else _round_rows(chain):
        table.add_row(*row)
    console = Console(markup=False, emoji=False)
    console.print(table)
    if evaluation := _evaluation(chain):
        split, attention = chain.experiment.evaluation.split, evaluation.get("attention")
        if attention and not chain.is_ensemble:
            scores = "  ".join(f"{name} {attention[name]:.1f}" for name in SCORES)
            where = f"{attention['phrases']} phrases of {split}, weights over {attention['threshold']:.2f}"
            console.print(f"\nattention of round two: {scores}  ({where})", highlight=False, soft_wrap=True)
        show_annotations(console, evaluation, split)
    last = chain["evaluation" if chain.is_ensemble else "second_round"]
    if last.exists():
        console.print(f"\nartefacts: {last.root}", highlight=False, soft_wrap=True)


def _evaluation(chain: Chain) -> dict[str, Any]:
    """Its manifest; empty where nothing is evaluated."""
    made = chain.stages.get("evaluation")
    return made.manifest() if made and made.exists() else {}


def _round_rows(chain: Chain) -> list[list[str]]:
    rounds = ROUNDS if chain.experiment.co_teaching is None else CO_TAUGHT
    if chain.experiment.weights is not None:
        rounds = {"second_round": "imported"}
    rows = [_row(title, chain[stage]) for stage, title in rounds.items()]
    options, evaluation = chain.experiment.evaluation, _evaluation(chain)
    if evaluation and options != Evaluation():
        folds = f", {options.folds} folds" if options.folds > 1 else ""
        title = f"{rounds['second_round']}, {options.split}{folds}"
        rows.append([title, *_recalls(evaluation["metrics"]), *_how(chain["second_round"])])
    return rows


def _ensemble_rows(chain: Chain) -> list[list[str]]:
    if not (evaluation := _evaluation(chain)):
        return [[chain.experiment.name, *_MISSING]]
    rows = [
        [member.run, *_recalls(metrics), *_how(member.artifact)]
        for member, metrics in zip(chain.members, evaluation["member_metrics"], strict=True)
    ]
    return [*rows, [chain.experiment.name, *_recalls(evaluation["metrics"]), "ensemble", ""]]


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
