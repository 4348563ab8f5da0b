"""`aoq results`: round one, the control and round two side by side, or a study."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from aoq.pipeline.artifact import Artifact
from aoq.pipeline.cli.experiment import override, roots
from aoq.pipeline.config.dataset import Evaluation
from aoq.pipeline.evaluation.attention import SCORES
from aoq.pipeline.evaluation.retrieval import K
from aoq.pipeline.planning.chain import Chain
from aoq.pipeline.planning.planner import plan
from aoq.pipeline.planning.study import PlannedStudy, plan_study
from aoq.pipeline.report.study import Row, read_cell, summarise_study, table_of
from aoq.pipeline.settings import configured_path

_MISSING = [""] * (2 * len(K) + 2) + ["missing"]
ROUNDS = {"first_round": "round one", "control": "control", "second_round": "round two"}
CO_TAUGHT = {"control": "control", "second_round": "co-taught"}
RELEVANCE = {"r_precision": "R-P", "map_r": "mAP@R", "r1": "@1", "r5": "@5", "r10": "@10"}
STUDY_WIDTH = 200
"""A study's rows are not folded: they are as long as it has columns."""
MOST_NAMED = 8
"""Trainings that are missing are named up to this many."""


@click.command()
@click.argument("experiment", required=False)
@override
@click.option("--study", default="", help="A study, in place of EXPERIMENT: its arms on its models over its seeds.")
@click.option("--model", "models", multiple=True, help="Show only this model of the study; may be repeated.")
@click.option("--arm", "arms", multiple=True, help="Show only this arm of the study; may be repeated.")
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
        _show_study(plan_study(study, **folders), models, arms)
        return
    if models or arms:
        raise click.UsageError("--model and --arm are for a --study.")
    _show_rounds(plan(str(experiment), override=override, **folders))


def _show_rounds(chain: Chain) -> None:
    table = _table([*(f"{direction}@{k}" for direction in ("i2t", "t2i") for k in K), "rsum"])
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
        _show_annotations(console, evaluation, split)
    last = chain["evaluation" if chain.is_ensemble else "second_round"]
    if last.exists():
        console.print(f"\nartefacts: {last.root}", highlight=False, soft_wrap=True)


def _table(columns: Sequence[str]) -> Table:
    """An empty table of numbers; the first column has names, which may be long."""
    table = Table(box=None, pad_edge=False, header_style="bold", title_justify="left")
    table.add_column("", overflow="fold")
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _evaluation(chain: Chain) -> dict[str, Any]:
    """The evaluation's manifest; empty where nothing is evaluated."""
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


def _show_annotations(console: Console, evaluation: Mapping[str, Any], split: str) -> None:
    """Show what an evaluation knows beyond the pairs: many right answers, PMRP, agreement with people."""
    if "relevance" in evaluation:
        table = Table(f"{split}, all that is right", box=None, pad_edge=False, header_style="bold")
        for column in RELEVANCE.values():
            table.add_column(column, justify="right")
        for name, by_direction in evaluation["relevance"].items():
            for direction, found in by_direction.items():
                table.add_row(f"{name} {direction}", *(f"{found[metric]:.1f}" for metric in RELEVANCE))
        console.print()
        console.print(table)
    if "plausible" in evaluation:
        found = evaluation["plausible"]
        console.print(f"\nPMRP: i2t {found['i2t_pmrp']:.1f}  t2i {found['t2i_pmrp']:.1f}", highlight=False)
    for name, found in evaluation.get("judgements", {}).items():
        said = f"Spearman {found['spearman']:.1f}  Kendall {found['kendall']:.1f}  ({found['judged']:,} pairs)"
        if found["false_hits"]:
            said += f"; of {found['false_hits']:,} false first images people call {found['right_share']:.0f} % right"
        console.print(f"\n{name}: {said}", highlight=False, soft_wrap=True)


def _show_study(planned: PlannedStudy, models: Sequence[str], arms: Sequence[str]) -> None:
    """The rows of the models and arms named, of all where none is."""
    study = planned.study
    for given, known, option in ((models, study.models, "--model"), (arms, study.arms, "--arm")):
        if unknown := [name for name in given if name not in known]:
            raise ValueError(f"study {study.name!r} has no {option} {unknown[0]!r}; it has {list(known)}.")
    models, arms = models or [*study.models], arms or [*study.arms]
    lines = [line for line in _summary(planned) if line["model"] in models and line["arm"] in arms]
    console = Console(width=STUDY_WIDTH, markup=False, emoji=False)  # names are the user's
    for model in dict.fromkeys(line["model"] for line in lines):
        (_, *header), *rows = table_of(study, model, lines)
        table = _table(header)
        table.title = f"{model} ({study.models[model]})"
        for row in rows:
            table.add_row(*row)
        console.print(table)
        console.print()
    if not lines:
        console.print("nothing of what was asked is there.\n")
    console.print(_what_is_there(planned), highlight=False, soft_wrap=True)


def _summary(planned: PlannedStudy) -> list[Row]:
    """The summary as it was published, with its intervals; else of the cells that are there."""
    if planned.artifact.exists():
        return list(pq.read_table(planned.artifact.path / "summary.parquet").to_pylist())
    return summarise_study(planned.study, [read_cell(cell) for cell in planned.cells if cell.is_there])


def _what_is_there(planned: PlannedStudy) -> str:
    if planned.artifact.exists():
        return f"results.parquet, summary.parquet, ranks.parquet, table.md: {planned.artifact.path}"
    missing = [f"{cell.model}/{cell.arm}/{cell.seed}" for cell in planned.cells if not cell.is_there]
    named = ", ".join(missing[:MOST_NAMED]) + (", ..." if len(missing) > MOST_NAMED else "")
    count = len(planned.cells)
    said = f"{count - len(missing)} of {count} trainings are there, so without intervals; "
    return f"{said}{f'missing: {named}; ' if missing else ''}the rest: {_command(planned)}"


def _command(planned: PlannedStudy) -> str:
    """The command that makes the study where it was looked for."""
    words = ["luigi", "--module", "tasks", "Ablation", "--study", planned.asked]
    for option, folder in (("data_root", planned.cells[0].chain.data_root), ("artifact_root", planned.artifact.root)):
        if folder != configured_path(option):
            words += [f"--{option.replace('_', '-')}", str(folder)]
    return shlex.join(words)
