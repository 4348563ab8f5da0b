"""Planning a study: every cell is an experiment with an override, so common stages have one key and are made once."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from aoq.pipeline.artifact import Artifact
from aoq.pipeline.config.experiment import Experiment
from aoq.pipeline.config.load import load_experiment, merged, override_text, parse_override
from aoq.pipeline.config.losses import LossSection, online_version
from aoq.pipeline.config.study import Change, Study, load_study
from aoq.pipeline.planning.chain import Member, same_queries, split_member
from aoq.pipeline.planning.planner import plan

VERSION = 1

logger = logging.getLogger(__name__)


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
    """The study's name, or its file, as it was given."""
    cells: tuple[Cell, ...]
    artifact: Artifact


def plan_study(name: str, *, data_root: Path, artifact_root: Path) -> PlannedStudy:
    """Every cell's chain; the data must be there, nothing else."""
    study = load_study(name)
    cells = tuple(_cells(study, data_root, artifact_root))
    _check_same_queries(study, cells)
    _name_twins(study, cells)
    ingredients = {
        "title": study.title,
        "baseline": study.baseline,
        "columns": study.columns,
        "cells": [[cell.model, cell.arm, study.says(cell.arm), cell.seed] for cell in cells],
    }
    evaluations = tuple(cell.chain["evaluation"] for cell in cells)
    return PlannedStudy(study, name, cells, Artifact(artifact_root, "study", VERSION, ingredients, evaluations))


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
    """The change, where another loss keeps the margins and other numbers of the one whose place it takes.

    They belong to the range of the model's scores rather than to the loss.
    """
    second_round = change.get("second_round")
    if not isinstance(second_round, dict) or not isinstance(second_round.get("loss"), dict):
        return change
    loss = second_round["loss"]
    try:
        section, here = LossSection.kind(loss.get("name", "")), base.student.loss
    except ValueError:  # the experiment says so better
        return change
    there = here if section.draws_offline else online_version(here)
    kept = {
        number: value
        for number, value in there.model_dump(exclude={"name"}).items()
        if number in section.model_fields and value != section.model_fields[number].default
    }
    return {**change, "second_round": {**second_round, "loss": {**kept, **loss}}}


def _name_twins(study: Study, cells: tuple[Cell, ...]) -> None:
    """Arms that are one training: a typing error in one of them, or a default written out."""
    first: dict[tuple[str, int, str], str] = {}
    for cell in cells:
        arm = first.setdefault((cell.model, cell.seed, cell.chain["evaluation"].key), cell.arm)
        if arm != cell.arm and cell.seed == study.seeds[0]:
            logger.warning(
                "study %r: arms %r and %r of model %r are the same training", study.name, arm, cell.arm, cell.model
            )


def _check_same_queries(study: Study, cells: tuple[Cell, ...]) -> None:
    """Arms are compared query by query, so they must be asked the same."""
    first: dict[str, Cell] = {}
    for cell in cells:
        if not same_queries(first.setdefault(cell.model, cell).chain, cell.chain):
            raise ValueError(
                f"study {study.name!r}: arm {cell.arm!r} of model {cell.model!r} is evaluated on other data than the "
                "baseline, so they cannot be compared; make it a model of its own."
            )
