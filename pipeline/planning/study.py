"""Planning a study: every cell is an experiment with an override, so common stages have one key and are made once."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aoq.pipeline.artifact import Artifact
from aoq.pipeline.config.experiment import Experiment
from aoq.pipeline.config.load import load_experiment, merge, override_text, parse_override
from aoq.pipeline.config.losses import LossSection, online_version
from aoq.pipeline.config.study import Change, Study, load_study
from aoq.pipeline.planning.chain import Chain, split_member
from aoq.pipeline.planning.stages import plan

VERSION = 1

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Cell:
    """One training of a study, with its evaluation."""

    model: str
    arm: str
    seed: int
    experiment: str
    override: str
    chain: Chain

    @property
    def evaluation(self) -> Artifact:
        return self.chain["evaluation"]

    @property
    def is_there(self) -> bool:
        return self.chain["second_round"].exists() and self.evaluation.exists()


@dataclass(frozen=True)
class StudyPlan:
    """All cells, seed by seed, so that an unfinished study has every arm before it repeats one."""

    study: Study
    asked: str
    """The study's name, or its file, as it was given."""
    cells: tuple[Cell, ...]
    artifact: Artifact


def plan_study(name: str, *, data_root: Path, artifact_root: Path) -> StudyPlan:
    """Every cell's chain; the data must be there, nothing else."""
    study = load_study(name)
    for model, member in study.models.items():
        _check_trains(study, model, member)
    cells = tuple(_cells(study, data_root, artifact_root))
    _check_same_queries(study, cells)
    _name_twins(study, cells)
    ingredients = {
        "title": study.title,
        "baseline": study.baseline,
        "columns": study.columns,
        "cells": [[cell.model, cell.arm, study.says(cell.arm), cell.seed] for cell in cells],
    }
    evaluations = tuple(cell.evaluation for cell in cells)
    return StudyPlan(study, name, cells, Artifact(artifact_root, "study", VERSION, ingredients, evaluations))


def _cells(study: Study, data_root: Path, artifact_root: Path) -> Iterator[Cell]:
    for seed in study.seeds:
        for model, member in study.models.items():
            experiment = split_member(member)[0]
            for arm in study.arms_of(model):
                try:
                    chosen = override_text(_change(study, arm, model, seed))
                    chain = plan(experiment, override=chosen, data_root=data_root, artifact_root=artifact_root)
                except (ValueError, OSError) as error:
                    raise ValueError(
                        f"study {study.name!r}: model {model!r} ({member}) cannot run arm {arm!r}: {error}; change "
                        f"[arms.{arm}], or name there the `models` that can run it."
                    ) from None
                yield Cell(model, arm, seed, experiment, chosen, chain)


def _check_trains(study: Study, model: str, member: str) -> None:
    try:
        experiment = load_experiment(*split_member(member))
    except ValueError as error:
        raise ValueError(f"study {study.name!r}: [models] {model}: {error}") from None
    if not isinstance(experiment, Experiment) or experiment.weights is not None:
        raise ValueError(f"study {study.name!r}: [models] {model}: experiment {member!r} trains nothing.")
    if "seed" in parse_override(split_member(member)[1]):
        raise ValueError(f"study {study.name!r}: [models] {model} sets a seed, which is what `seeds` are for.")


def _change(study: Study, arm: str, model: str, seed: int) -> Change:
    """What the model, the arm and the seed change in the experiment's file."""
    experiment, override = split_member(study.models[model])
    change = parse_override(override) if override else {}
    base = load_experiment(experiment, override)
    assert isinstance(base, Experiment)  # checked before
    asked = deepcopy(study.arms[arm].change)
    merge(asked, deepcopy(study.arms[arm].change_for.get(model, {})))
    merge(change, _with_numbers(asked, base))
    return {**change, "seed": seed}


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
        arm = first.setdefault((cell.model, cell.seed, cell.evaluation.key), cell.arm)
        if arm != cell.arm and cell.seed == study.seeds[0]:
            logger.warning(
                "study %r: arms %r and %r of model %r are the same training", study.name, arm, cell.arm, cell.model
            )


def _check_same_queries(study: Study, cells: tuple[Cell, ...]) -> None:
    """Arms are compared query by query, so they must be asked the same."""
    asked: dict[str, Any] = {}
    for cell in cells:
        dataset, evaluation = cell.chain["dataset"], cell.evaluation.ingredients
        queries = [dataset.ingredients["splits"]["dev"], *(world.key for world in dataset.upstream)]
        queries += [evaluation[option] for option in ("split", "folds", "content")]
        if asked.setdefault(cell.model, queries) != queries:
            raise ValueError(
                f"study {study.name!r}: arm {cell.arm!r} of model {cell.model!r} is evaluated on other data than the "
                f"baseline ({queries}, {asked[cell.model]}), so they cannot be compared; make it a model of its own."
            )
