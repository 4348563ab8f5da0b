"""`aoq results`: the trainings of an experiment side by side, with a verdict; or a study."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import pyarrow.parquet as pq

from aoq.pipeline.artifact import Artifact
from aoq.pipeline.cli.options import EXPERIMENT, STUDY, as_json, override, roots, with_override
from aoq.pipeline.cli.output import command_line, echo_json, echo_next, say, show_rows, to_make
from aoq.pipeline.config.load import split_member
from aoq.pipeline.evaluation.significance import FEWEST_SEEDS
from aoq.pipeline.report.verdict import evaluated_gain, gain_on_control, gains_apart
from aoq.pipeline.stages.chain import Chain, Member, find_teachers
from aoq.pipeline.stages.plan import plan_parts
from aoq.pipeline.stages.report import find_control, plan_run
from aoq.pipeline.stages.study import RECALL_NAMES, PlannedStudy, model_table, plan_study, read_cell, summarise_study

RECALL_COLUMNS = {**RECALL_NAMES, "rsum": "rsum"}
MEASURES = ("metrics", "without_hubs", "member_metrics", "attention", "relevance", "plausible", "judgements")
STUDY_WIDTH = 200
"""Width without a terminal, so that a study's rows are not folded."""


@click.command("results")
@click.argument("experiment", required=False, type=EXPERIMENT)
@override
@click.option("--study", default="", type=STUDY, help="A study, instead of EXPERIMENT.")
@click.option("--model", "models", multiple=True, help="Show only this model of the study; may be repeated.")
@click.option("--arm", "arms", multiple=True, help="Show only this arm of the study; may be repeated.")
@as_json
@roots
def results_command(
    experiment: str | None,
    override: str,
    study: str,
    models: tuple[str, ...],
    arms: tuple[str, ...],
    as_json: bool,
    **folders: Path,
) -> None:
    """Show recalls, with a verdict.

    Show the dev recalls of EXPERIMENT's rounds, or the table of a --study, finished or not. The control is the
    same student, trained without the table or teachers' scores. The teacher made the table; teachers 1, 2, … score the
    student's batches. The verdict is the gain of round two over the control, with the 95 % interval of a bootstrap over
    the images and a paired test.

    An evaluation on another split (or in folds) adds its recalls, its verdict if the control is evaluated too, and the
    split's other metrics: attention, several right answers, agreement with people (docs/evaluation.md). An ensemble
    has the recalls of its members and of their mean similarity on its evaluation split.
    """
    if bool(experiment) == bool(study):
        raise click.UsageError("name an EXPERIMENT, or a --study.")
    if study and override:
        raise click.UsageError("--override is for an EXPERIMENT; a study's file says what its arms change.")
    if not study and (models or arms):
        raise click.UsageError("--model and --arm are for a --study.")
    if study:
        _show_study(plan_study(study, **folders), models, arms, as_json=as_json)
        return
    name, override = with_override(str(experiment), override)
    chain = (run := plan_run(name, override, **folders)).chain
    made = chain.made("evaluation")
    evaluation = made.manifest() if made else {}
    control = find_control(run) if (beside := _split_beside_dev(chain, evaluation)) else None
    elsewhere = evaluated_gain(chain, control.chain) if control else None
    parts = plan_parts(chain)
    apart = gains_apart(chain, parts)
    if as_json:
        trainings = {stage: training.artifact for stage, _, training in _trainings(chain) if training.artifact.exists()}
        rounds = {stage: {"key": one.key, **one.manifest()["metrics"]} for stage, one in trainings.items()}
        measured = {name: evaluation[name] for name in MEASURES if name in evaluation}
        measured |= {"verdict": elsewhere} if elsewhere else {}
        known = {"evaluation": {"split": chain.experiment.evaluation.split, **measured}} if evaluation else {}
        about = {"experiment": chain.experiment.name, "override": override, "rounds": rounds, **known}
        echo_json({**about, "verdict": gain_on_control(chain), **({"parts": apart} if parts else {})})
        return
    figures = RECALL_COLUMNS.values()
    show_rows(("", *figures, "model", "loss"), _recalls(chain, evaluation, beside, control), right=figures)
    if verdicts := "\n".join(filter(None, (gain_on_control(chain), elsewhere))):
        say(f"\n{verdicts}")
    for title, teacher in find_teachers(chain):
        if "control" in chain.stages and teacher.artifact.key == chain["control"].key:
            say(f"the control and {title} are one training")
    for part, (own, _) in parts.items():
        say(apart.get(part) or f"not trained, {part}: {command_line('aoq', 'run', name, '--override', own)}")
    _show_annotations(evaluation)
    wanted = ("evaluation",) if chain.is_ensemble else ("second_round", "control")
    if chain[wanted[0]].exists():
        say(f"\nartefacts: {chain[wanted[0]].root}")
    if missing := [stage for stage in wanted if stage in chain.stages and not chain[stage].exists()]:
        echo_next(to_make(missing[0]))
    elif control and not control.artifact.exists():
        name, override = split_member(control.reference)
        echo_next(command_line("aoq", "evaluate", name, "--override", override))


def _trainings(chain: Chain) -> Iterator[tuple[str, str, Member]]:
    """Yield stage, title and training: teachers (or the student one refresh earlier), control, round two."""
    for title, teacher in find_teachers(chain):
        yield "first_round" if (title, teacher.stage) == ("teacher", "first_round") else title, title, teacher
    experiment = chain.experiment
    student = "imported" if experiment.weights else "co-taught" if experiment.co_teaching else "round two"
    for stage, title in (("control", "control"), ("second_round", student)):
        if stage in chain.stages:
            yield stage, title, Member(experiment.name, chain, stage)


def _split_beside_dev(chain: Chain, evaluation: Mapping[str, Any]) -> str:
    """Name the split and folds of a training's evaluation; return "" if there is none, or if it is dev."""
    options = chain.experiment.evaluation
    if not evaluation or chain.is_ensemble or (options.split == chain.experiment.dataset.dev and options.folds == 1):
        return ""
    return options.split if options.folds == 1 else f"{options.split}, {options.folds} folds"


def _recalls(chain: Chain, evaluation: Mapping[str, Any], beside: str, control: Member | None) -> Iterator[list[str]]:
    """Yield rows of an ensemble's members and mean similarity; or of the rounds on dev, and the last ones `beside`."""
    experiment, last = chain.experiment, ""
    if chain.is_ensemble:
        for member, metrics in zip(chain.members, evaluation.get("member_metrics", ()), strict=bool(evaluation)):
            yield _recall_row(member.run, metrics, member.artifact)
        yield _recall_row(experiment.name, evaluation.get("metrics"), None)
        return
    for _, title, training in _trainings(chain):
        artifact, dev, last = training.artifact, training.chain.experiment.dataset.dev, title
        metrics = artifact.manifest()["metrics"] if artifact.exists() else None
        yield _recall_row(title if dev == experiment.dataset.dev else f"{title}, {dev}", metrics, artifact)
    if control and control.artifact.exists():
        yield _recall_row(f"control, {beside}", control.artifact.manifest()["metrics"], chain["control"])
    if beside:
        yield _recall_row(f"{last}, {beside}", evaluation["metrics"], chain["second_round"])


def _recall_row(title: str, metrics: Mapping[str, float] | None, artifact: Artifact | None) -> list[str]:
    if metrics is None:
        return [f"{title} (missing)", *[""] * len(RECALL_COLUMNS), "", ""]
    model, loss = "ensemble", ""
    if artifact is not None:
        model, training = artifact.ingredients["model"]["name"], artifact.ingredients.get("training")
        loss = "co-teaching" if "co_teaching" in artifact.ingredients else "imported"
        loss = training["loss"]["name"] + " + distillation" * ("distillation" in training) if training else loss
    return [title, *(f"{metrics.get(metric, math.nan):.1f}" for metric in RECALL_COLUMNS), model, loss]


def _show_annotations(evaluation: Mapping[str, Any]) -> None:
    relevance = evaluation.get("relevance", {})
    measured = {
        "without hubs": evaluation.get("without_hubs"),
        "attention": evaluation.get("attention"),
        **{f"{name} {direction}": one for name, both in relevance.items() for direction, one in both.items()},
        "PMRP": evaluation.get("plausible"),
        **evaluation.get("judgements", {}),
    }
    for name, metrics in measured.items():
        figures = {key: round(value, 2) for key, value in (metrics or {}).items() if isinstance(value, int | float)}
        if figures:
            say(f"\n{name}: ", "  ".join(f"{key} {value:,}" for key, value in figures.items()))


def _show_study(planned: PlannedStudy, models: Sequence[str], arms: Sequence[str], *, as_json: bool) -> None:
    study = planned.study
    for named, known, option in ((models, study.models, "--model"), (arms, study.arms, "--arm")):
        if unknown := [name for name in named if name not in known]:
            raise ValueError(f"study {study.name!r} has no {option} {unknown[0]!r}; it has {list(known)}.")
    if planned.artifact.exists():
        summary = pq.read_table(planned.artifact.opened() / "summary.parquet").to_pylist()
        state = f"results.parquet, summary.parquet, ranks.parquet, table.md: {planned.artifact.path}"
    else:
        summary = summarise_study(study, [read_cell(cell) for cell in planned.cells if cell.is_there])
        state = _what_is_missing(planned)
    if len(study.seeds) < FEWEST_SEEDS:
        state += f"\nseeds {', '.join(map(str, study.seeds))}: too few for a verdict, which needs {FEWEST_SEEDS}"
    models, arms = models or [*study.models], arms or [*study.arms]
    lines = [line for line in summary if line["model"] in models and line["arm"] in arms]
    if as_json:
        echo_json(lines)
        return
    width = None if sys.stdout.isatty() else STUDY_WIDTH
    for model in dict.fromkeys(line["model"] for line in lines):
        header, *rows = model_table(study, model, lines)
        show_rows(header, rows, right=header[1:], title=f"{model} ({study.models[model]})", width=width)
        say()
    if not lines:
        say("none of these trainings exists yet.\n")
    say(state)


def _what_is_missing(planned: PlannedStudy) -> str:
    count, there = len(planned.cells), sum(cell.is_there for cell in planned.cells)
    command = command_line("aoq", "study", planned.reference)
    if there == count:
        return f"all {count} trainings exist, but not the study; run: {command}"
    return f"{there} of {count} trainings exist, so no intervals yet; run the rest: {command}"
