"""A report: one page about several runs and their controls."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aoq.pipeline.artifact import Artifact
from aoq.pipeline.build import Build
from aoq.pipeline.config.load import merged, override_text, parse_override, split_member
from aoq.pipeline.config.losses import control_change
from aoq.pipeline.config.training import control_training
from aoq.pipeline.engine import Engine
from aoq.pipeline.extras import import_extra
from aoq.pipeline.stages.chain import Member, trains_as_control
from aoq.pipeline.stages.plan import plan, plan_parts

SEPARATOR = ";"


@dataclass(frozen=True)
class PlannedReport:
    """Experiments, each with an optional override after `@`, and the page about them."""

    members: tuple[Member, ...]
    artifact: Artifact


def plan_report(runs: str, *, data_root: Path, artifact_root: Path) -> PlannedReport:
    """Plan a report of `runs` as typed, "demo; demo@seed=1", and of the controls of those that are taught."""
    for package in ("jinja2", "matplotlib"):  # a missing one is named before anything is made
        import_extra(package, "report", "a report")
    names = tuple(filter(None, map(str.strip, runs.split(SEPARATOR))))
    if not names:
        raise ValueError('a report is about runs; name some: "demo; demo@seed=1"')
    if len(set(names)) < len(names):
        raise ValueError(f"a run is listed twice in {list(names)}; name each once.")
    members = [plan_run(*split_member(name), data_root=data_root, artifact_root=artifact_root) for name in names]
    seen: dict[str, str] = {}
    for member in members:
        if (other := seen.setdefault(member.artifact.key, member.reference)) != member.reference:
            raise ValueError(f"{other!r} and {member.reference!r} are one run; name it once.")
    for member in tuple(members):
        control = find_control(member)
        if control is not None and control.artifact.key not in {member.artifact.key for member in members}:
            members.append(control)
    ingredients, evaluations = {"runs": [member.run for member in members]}, [member.artifact for member in members]
    return PlannedReport(tuple(members), Artifact(artifact_root, "report", 2, ingredients, tuple(evaluations)))


def plan_run(name: str, override: str, **roots: Path) -> Member:
    """Plan a student or an ensemble, which have results."""
    chain = plan(name, override=override, **roots)
    if "evaluation" not in chain.stages:
        raise ValueError(f"{chain.reference!r} makes a table and trains nothing, so it has no results; name a student.")
    return Member(chain.reference, chain, "evaluation")


def find_control(member: Member) -> Member | None:
    """Return the run whose training is the member's control; None if it is its own, or if no override makes it."""
    experiment = member.chain.experiment
    if not member.chain.is_taught or experiment.co_teaching is not None:
        return None
    name, override = split_member(member.reference)
    change: dict[str, Any] = {} if experiment.student.distillation is None else {"distillation": False}
    control = control_training(experiment.student, experiment.encoded_groups, experiment.tuned_rounds)
    change["loss"] = control_change(experiment.student.loss)
    if experiment.student.control is not None:
        own = {"batch_size", "epoch_steps", "epochs", "decay_epochs", "warmup"}
        change |= {"control": "steps", **control.model_dump(mode="json", include=own, exclude_none=True)}
    again = {} if experiment.refresh is None else {"refresh": {"rounds": 0}}
    changed = merged(parse_override(override), {"second_round": change, **again})
    try:
        roots = {"data_root": member.chain.data_root, "artifact_root": member.chain.artifact_root}
        found = plan_run(name, override_text(changed), **roots)
    except ValueError:  # the experiment has options that need offline negatives
        return None
    return found if trains_as_control(found.chain, member.chain) else None


def make_report(planned: PlannedReport, build: Build, engine: Engine) -> None:
    build.clear()
    engine.torch_device()
    (build.directory / "report.html").write_text(render_report(planned), encoding="utf-8")


def render_report(
    planned: PlannedReport, evaluating: Callable[[str], str] = lambda name: shlex.join(["aoq", "evaluate", name])
) -> str:
    """Render the page from complete results; runs not evaluated yet have gaps, and the command of `evaluating`."""
    from aoq.pipeline.report.page import render

    named = [(member.reference, member.chain) for member in planned.members]
    return render(named, evaluating, {name: plan_parts(chain) for name, chain in named})
