"""`aoq results`: the teacher, the control and round two side by side, with a verdict; or a study."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import pyarrow.parquet as pq
from rich.table import Column, Table

from aoq.pipeline.artifact import Artifact
from aoq.pipeline.cli.naming import EXPERIMENT, STUDY, to_make, with_override
from aoq.pipeline.cli.options import as_json, override, roots
from aoq.pipeline.cli.output import Console, echo_json, echo_next
from aoq.pipeline.config.dataset import Evaluation
from aoq.pipeline.evaluation.attention import SCORES
from aoq.pipeline.evaluation.retrieval import K
from aoq.pipeline.planning.chain import Chain, Member, teacher_of
from aoq.pipeline.planning.comparisons import PlannedStudy, plan_study
from aoq.pipeline.planning.planner import plan
from aoq.pipeline.report.study import read_cell, summarise_study, table_of
from aoq.pipeline.report.verdict import gain_on_control
from aoq.pipeline.settings import configured_path

ROUND_TWO, CO_TAUGHT = "round two", "co-taught"
RECALLS = {f"{direction}_r{k}": f"{direction}@{k}" for direction in ("i2t", "t2i") for k in K} | {"rsum": "rsum"}
RELEVANCE = {"r_precision": "R-P", "map_r": "mAP@R", "r1": "@1", "r5": "@5", "r10": "@10"}
STUDY_WIDTH = 200
"""Width without a terminal: a study's rows are not folded, they are as long as it has columns."""
MOST_NAMED = 8
"""Trainings that are missing are named up to this many."""


@click.command()
@click.argument("experiment", required=False, type=EXPERIMENT)
@override
@click.option("--study", default="", type=STUDY, help="A study, in place of EXPERIMENT.")
@click.option("--model", "models", multiple=True, help="Show only this model of the study; may be repeated.")
@click.option("--arm", "arms", multiple=True, help="Show only this arm of the study; may be repeated.")
@as_json
@roots
def results(
    experiment: str | None,
    override: str,
    study: str,
    models: tuple[str, ...],
    arms: tuple[str, ...],
    as_json: bool,
    **folders: Path,
) -> None:
    """Show recalls, with a verdict.

    Shown are EXPERIMENT's rounds on the dev split, or the table of a --study, as far as it is trained. The control is
    the same student with the same steps on the online loss alone. The verdict is the gain of round two over the
    control, with the 95 % interval of a bootstrap over the images and a paired test.

    An evaluation on another split (or in folds) adds its recalls, and what else is known of the split: how well the
    student attends, metrics of many right answers, agreement with people (docs/evaluation.md). An ensemble has the
    recalls of its members and of their mean similarity, on its evaluation split.
    """
    if bool(experiment) == bool(study):
        raise click.UsageError("name an EXPERIMENT, or a --study.")
    if study and override:
        raise click.UsageError("--override is for an EXPERIMENT; a study's file says what its arms change.")
    if not study and (models or arms):
        raise click.UsageError("--model and --arm are for a --study.")
    if study:
        planned = plan_study(study, **folders)
        _show_study(planned, models, arms, as_json=as_json)
        return
    name, override = with_override(str(experiment), override)
    chain = plan(name, override=override, **folders)
    if as_json:
        echo_json({"experiment": chain.experiment.name, "override": override, **_metrics(chain)})
    else:
        _show_experiment(chain)


def _metrics(chain: Chain) -> dict[str, Any]:
    """The metrics of each training that is there, and all that the evaluation knows."""
    found: dict[str, Any] = {"rounds": {}}
    for stage, _, training in _trainings(chain):
        if training.artifact.exists():
            found["rounds"][stage] = {"key": training.artifact.key, **training.artifact.manifest()["metrics"]}
    evaluation = chain.stages.get("evaluation")
    if evaluation is not None and evaluation.exists():
        known = ("metrics", "member_metrics", "attention", "relevance", "plausible", "judgements")
        manifest = evaluation.manifest()
        about = {name: manifest[name] for name in known if name in manifest}
        found["evaluation"] = {"split": chain.experiment.evaluation.split, **about}
    return {**found, "verdict": gain_on_control(chain)}


def _show_experiment(chain: Chain) -> None:
    """The recalls of each training, then what else the evaluation knows."""
    made = chain.stages.get("evaluation")
    evaluation = made.manifest() if made and made.exists() else {}
    rows = _ensemble_rows(chain, evaluation) if chain.is_ensemble else _round_rows(chain, evaluation)
    console = Console()
    console.print_table(_table("", RECALLS.values(), rows, words=("model", "loss")))
    if said := gain_on_control(chain):
        console.print(f"\n{said}", soft_wrap=True)
    _show_annotations(console, chain, evaluation)
    last = chain["evaluation" if chain.is_ensemble else "second_round"]
    if last.exists():
        console.print(f"\nartefacts: {last.root}", soft_wrap=True)
    missing = [stage for stage in ("second_round", "control") if stage in chain.stages and not chain[stage].exists()]
    if chain.is_ensemble and not last.exists():
        missing = ["evaluation"]
    if missing:
        echo_next(to_make(missing[0]))


def _trainings(chain: Chain) -> Iterator[tuple[str, str, Member]]:
    """The teacher, the control and round two, by stage and title; a student with one refresh less is a `teacher`."""
    imported, co_taught = chain.experiment.weights is not None, chain.experiment.co_teaching is not None
    if (teacher := teacher_of(chain)) is not None:
        yield "first_round" if teacher.stage == "first_round" else "teacher", "teacher", teacher
    titles = {"control": "control", "second_round": "imported" if imported else CO_TAUGHT if co_taught else ROUND_TWO}
    for stage, title in titles.items():
        if stage in chain.stages:
            yield stage, title, Member(chain.experiment.name, chain, stage)


def _round_rows(chain: Chain, evaluation: Mapping[str, Any]) -> Iterator[list[str]]:
    """The rounds on the dev split, and the last of them as it is evaluated, if that is another way."""
    last = ""
    for _, title, training in _trainings(chain):
        made, dev, last = training.artifact, training.chain.experiment.dataset.dev, title
        metrics = made.manifest()["metrics"] if made.exists() else None
        yield _row(title if dev == chain.experiment.dataset.dev else f"{title}, {dev}", metrics, *_how(made))
    options = chain.experiment.evaluation
    if evaluation and options != Evaluation():
        folds = f", {options.folds} folds" if options.folds > 1 else ""
        yield _row(f"{last}, {options.split}{folds}", evaluation["metrics"], *_how(chain["second_round"]))


def _ensemble_rows(chain: Chain, evaluation: Mapping[str, Any]) -> Iterator[list[str]]:
    """The members, and their mean similarity."""
    for member, metrics in zip(chain.members, evaluation["member_metrics"], strict=True) if evaluation else ():
        yield _row(member.run, metrics, *_how(member.artifact))
    yield _row(chain.experiment.name, evaluation.get("metrics"), "ensemble")


def _row(title: str, metrics: Mapping[str, float] | None, model: str, loss: str = "") -> list[str]:
    if metrics is None:
        return [f"{title} (missing)", *("" for _ in RECALLS), "", ""]
    return [title, *(f"{metrics.get(metric, math.nan):.1f}" for metric in RECALLS), model, loss]


def _how(artifact: Artifact) -> tuple[str, str]:
    """The model and the loss that it was trained with, or where it is from."""
    ingredients = artifact.recipe["ingredients"]
    if "training" in ingredients:
        return ingredients["model"]["name"], ingredients["training"]["loss"]["name"]
    return ingredients["model"]["name"], "co-teaching" if "co_teaching" in ingredients else "imported"


def _show_annotations(console: Console, chain: Chain, evaluation: Mapping[str, Any]) -> None:
    """Print the evaluation's other metrics: attention, many right answers, PMRP, agreement with people."""
    split, attention = chain.experiment.evaluation.split, evaluation.get("attention")
    if attention and not chain.is_ensemble:
        scores = "  ".join(f"{name} {attention[name]:.1f}" for name in SCORES)
        where = f"{attention['phrases']} phrases of {split}, weights over {attention['threshold']:.2f}"
        console.print(f"\nattention: {scores}  ({where})", soft_wrap=True)
    if relevance := evaluation.get("relevance"):
        rows = (
            [f"{name} {direction}", *(f"{found[metric]:.1f}" for metric in RELEVANCE)]
            for name, by_direction in relevance.items()
            for direction, found in by_direction.items()
        )
        console.print()
        console.print_table(_table(f"{split}, all that is right", RELEVANCE.values(), rows))
    if plausible := evaluation.get("plausible"):
        console.print(f"\nPMRP: i2t {plausible['i2t_pmrp']:.1f}  t2i {plausible['t2i_pmrp']:.1f}")
    for name, found in evaluation.get("judgements", {}).items():
        said = f"Spearman {found['spearman']:.1f}  Kendall {found['kendall']:.1f}  ({found['judged']:,} pairs)"
        if found["false_hits"]:
            said += f"; of {found['false_hits']:,} false first images people call {found['right_share']:.0f} % right"
        console.print(f"\n{name}: {said}", soft_wrap=True)


def _table(
    names: str, numbers: Iterable[str], rows: Iterable[Sequence[str]], *, words: Iterable[str] = (), title: str = ""
) -> Table:
    """Columns of names, which may be long, of numbers and of words."""
    columns = [Column(names, overflow="fold"), *(Column(name, justify="right", no_wrap=True) for name in numbers)]
    columns += [Column(name, no_wrap=True) for name in words]
    table = Table(*columns, title=title or None, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(*row)
    return table


def _show_study(planned: PlannedStudy, models: Sequence[str], arms: Sequence[str], *, as_json: bool) -> None:
    """A table for each model, of the models and arms named or of all; then where they are, or how to go on."""
    study = planned.study
    for given, known, option in ((models, study.models, "--model"), (arms, study.arms, "--arm")):
        if unknown := [name for name in given if name not in known]:
            raise ValueError(f"study {study.name!r} has no {option} {unknown[0]!r}; it has {list(known)}.")
    if planned.artifact.exists():
        summary = pq.read_table(planned.artifact.opened() / "summary.parquet").to_pylist()
        said = f"results.parquet, summary.parquet, ranks.parquet, table.md: {planned.artifact.path}"
    else:
        summary = summarise_study(study, [read_cell(cell) for cell in planned.cells if cell.is_there])
        said = _what_is_missing(planned)
    models, arms = models or [*study.models], arms or [*study.arms]
    lines = [line for line in summary if line["model"] in models and line["arm"] in arms]
    if as_json:
        echo_json(lines)
        return
    console = Console()
    if not console.is_terminal:
        console = Console(width=STUDY_WIDTH)
    for model in dict.fromkeys(line["model"] for line in lines):
        (names, *numbers), *rows = table_of(study, model, lines)
        console.print_table(_table(names, numbers, rows, title=f"{model} ({study.models[model]})"))
        console.print()
    if not lines:
        console.print("none of these trainings is there yet.\n")
    console.print(said, soft_wrap=True)


def _what_is_missing(planned: PlannedStudy) -> str:
    """Count the trainings of an unfinished study, and name the command that makes the rest in the same folders."""
    missing = [f"{cell.model}/{cell.arm}/{cell.seed}" for cell in planned.cells if not cell.is_there]
    named = ", ".join(missing[:MOST_NAMED]) + (", ..." if len(missing) > MOST_NAMED else "")
    count, command = len(planned.cells), ["aoq", "study", planned.asked]
    for option, folder in (("data_root", planned.cells[0].chain.data_root), ("artifact_root", planned.artifact.root)):
        if folder != configured_path(option):
            command += [f"--{option.replace('_', '-')}", str(folder)]
    if not missing:
        return f"all {count} trainings are there, but not the study; for intervals: {shlex.join(command)}"
    there = f"{count - len(missing)} of {count} trainings are there, so without intervals"
    return f"{there}; missing: {named}; the rest: {shlex.join(command)}"
