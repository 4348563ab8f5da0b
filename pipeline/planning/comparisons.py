"""Plan comparisons of runs: a report, or a study.

Every cell of a study is an experiment with an override, so common stages have one key and are computed once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from aoq.pipeline.artifact import Artifact
from aoq.pipeline.config.experiment import Experiment
from aoq.pipeline.config.load import load_experiment
from aoq.pipeline.config.losses import LossSection
from aoq.pipeline.config.overrides import merged, override_text, parse_override, split_member
from aoq.pipeline.config.study import Change, Study, load_study
from aoq.pipeline.extras import import_extra
from aoq.pipeline.planning.chain import Member, same_queries, trains_as_control
from aoq.pipeline.planning.keys import control_training
from aoq.pipeline.planning.planner import plan

SEPARATOR = ";"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PlannedReport:
    """Experiments, each with an optional override after `@`, and the page about them."""

    members: tuple[Member, ...]
    artifact: Artifact


def plan_report(runs: str, *, data_root: Path, artifact_root: Path) -> PlannedReport:
    """Plan a report of `runs` as typed, "demo; demo@seed=1", and of the controls of those that train on a table.

    Packages that draw the page are imported first, so that a missing one is named before anything is made.
    """
    for package in ("jinja2", "matplotlib"):
        import_extra(package, "report", "a report")
    asked = tuple(filter(None, map(str.strip, runs.split(SEPARATOR))))
    if not asked:
        raise ValueError('a report is about runs; name some: "demo; demo@seed=1"')
    if len(set(asked)) < len(asked):
        raise ValueError(f"a run stands twice among {list(asked)}; name each once.")
    members = []
    for name in asked:
        experiment, override = split_member(name)
        chain = plan(experiment, override=override, data_root=data_root, artifact_root=artifact_root)
        if "evaluation" not in chain.stages:
            raise ValueError(f"{name!r} makes a table and trains nothing, so it has no results; name a student.")
        members.append(Member(name, chain, "evaluation"))
    members = _with_controls(members, data_root, artifact_root)
    evaluations = tuple(member.artifact for member in members)
    ingredients = {"runs": [member.run for member in members]}
    return PlannedReport(tuple(members), Artifact(artifact_root, "report", 1, ingredients, evaluations))


def _with_controls(members: list[Member], data_root: Path, artifact_root: Path) -> list[Member]:
    """The members, and the control of each that has one which is not among them."""
    found, known = list(members), {member.chain["evaluation"].key for member in members}
    for member in members:
        control = control_of(member, data_root=data_root, artifact_root=artifact_root)
        if control is not None and control.chain["evaluation"].key not in known:
            known.add(control.chain["evaluation"].key)
            found.append(control)
    return found


def control_of(member: Member, *, data_root: Path, artifact_root: Path) -> Member | None:
    """The run whose training is the member's control; None of a run without a table, and where no override makes it."""
    experiment = member.chain.experiment
    if not member.chain.trains_on_table or experiment.co_teaching is not None:
        return None
    name, override = split_member(member.asked)
    loss = control_training(experiment.student).loss.model_dump(mode="json", exclude_defaults=True)
    changed = merged(parse_override(override), {"second_round": {"loss": {**loss, "name": str(loss["name"])}}})
    asked = f"{name}@{override_text(changed)}"
    try:
        chain = plan(name, override=override_text(changed), data_root=data_root, artifact_root=artifact_root)
    except ValueError:  # the experiment has options that need offline negatives
        return None
    return Member(asked, chain, "evaluation") if trains_as_control(chain, member.chain) else None


@dataclass(frozen=True)
class Cell(Member):
    """One training of a study, with its evaluation."""

    model: str
    arm: str
    seed: int

    @property
    def is_there(self) -> bool:
        return self.chain["second_round"].exists() and self.chain["evaluation"].exists()


@dataclass(frozen=True)
class PlannedStudy:
    """All cells, seed by seed, so that an unfinished study has every arm before it repeats one."""

    study: Study
    asked: str
    """The study's name or file, as given."""
    cells: tuple[Cell, ...]
    artifact: Artifact


def plan_study(name: str, *, data_root: Path, artifact_root: Path) -> PlannedStudy:
    """Plan every cell's chain; only the data must exist."""
    study = load_study(name)
    cells = tuple(_cells(study, data_root, artifact_root))
    _check(study, cells)
    named = [[cell.model, cell.arm, study.says(cell.arm), cell.seed] for cell in cells]
    ingredients = study.model_dump(include={"title", "baseline", "columns"}) | {"cells": named}
    evaluations = tuple(cell.artifact for cell in cells)
    return PlannedStudy(study, name, cells, Artifact(artifact_root, "study", 1, ingredients, evaluations))


def _cells(study: Study, data_root: Path, artifact_root: Path) -> Iterator[Cell]:
    bases = {model: _base(study, model, member) for model, member in study.models.items()}
    for seed in study.seeds:
        for model, member in study.models.items():
            name, override = split_member(member)
            for arm in study.arms_of(model):
                try:
                    asked = merged(study.arms[arm].change, study.arms[arm].change_for.get(model, {}))
                    change = merged(parse_override(override), _with_numbers(asked, bases[model]))
                    chosen = override_text({**change, "seed": seed})
                    chain = plan(name, override=chosen, data_root=data_root, artifact_root=artifact_root)
                except (ValueError, OSError) as error:
                    raise ValueError(
                        f"study {study.name!r}: model {model!r} ({member}) cannot run arm {arm!r}: {error}; change "
                        f"[arms.{arm}], or name there the `models` that can run it."
                    ) from None
                yield Cell(f"{name}@{chosen}", chain, "evaluation", model, arm, seed)


def _base(study: Study, model: str, member: str) -> Experiment:
    """The experiment that the arms change."""
    name, override = split_member(member)
    where = f"study {study.name!r}: [models] {model}"
    try:
        experiment = load_experiment(name, override)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    if not isinstance(experiment, Experiment) or experiment.weights is not None:
        raise ValueError(f"{where}: experiment {member!r} trains nothing.")
    if "seed" in parse_override(override):
        raise ValueError(f"{where} sets a seed, which is what `seeds` are for.")
    return experiment


def _with_numbers(change: Change, base: Experiment) -> Change:
    """Add to the change the margins and other numbers of the loss that another one replaces.

    They depend on the range of the model's scores rather than on the loss.
    """
    second_round = change.get("second_round")
    if not isinstance(second_round, dict) or not isinstance(second_round.get("loss"), dict):
        return change
    loss = second_round["loss"]
    try:
        section = LossSection.kind(str(loss.get("name", "")))
    except ValueError:  # the experiment has the better message
        return change
    here = base.student.loss.model_dump(exclude={"name"})
    online = here.get("margin", here.get("margin_online"))  # with offline negatives its name differs
    kept = {
        number: value
        for number, value in {"margin": online, "margin_online": online, **here}.items()
        if number in section.model_fields and value not in (None, section.model_fields[number].default)
    }
    return {**change, "second_round": {**second_round, "loss": {**kept, **loss}}}


def _check(study: Study, cells: tuple[Cell, ...]) -> None:
    """Check that arms have the same queries, as they are compared query by query; name those that are one training."""
    first: dict[str, Cell] = {}
    trained: dict[tuple[str, int, str], str] = {}
    for cell in cells:
        if not same_queries(first.setdefault(cell.model, cell).chain, cell.chain):
            raise ValueError(
                f"study {study.name!r}: arm {cell.arm!r} of model {cell.model!r} is evaluated on other data than the "
                "baseline, so they cannot be compared; make it a model of its own."
            )
        arm = trained.setdefault((cell.model, cell.seed, cell.artifact.key), cell.arm)
        if arm != cell.arm and cell.seed == study.seeds[0]:  # a typing error in one of them, or an explicit default
            twins = study.name, arm, cell.arm, cell.model
            logger.warning("study %r: arms %r and %r of model %r are the same training", *twins)
