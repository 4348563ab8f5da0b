"""The chain of artefacts an experiment consists of; `aoq.pipeline.planning.planner` plans it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from aoq.pipeline.artifact import Artifact
from aoq.pipeline.config.experiment import Experiment
from aoq.pipeline.config.tables import Fusion, Mining, Refresh, Rerank
from aoq.pipeline.digests import digest

LONGEST_NAME = 200
"""Characters in the name of a folder: file systems take 255 bytes."""


@dataclass(frozen=True)
class Chain:
    """Every artefact of one experiment, by stage, in the order they are made; with the experiment itself.

    A stage is what the experiment uses an artefact for; the artefact's own `stage` is what made it. The `control`, the
    second round's student, schedule and seed on the online loss alone, is made as a first round, and is the teacher's
    own where that has the same schedule.
    """

    experiment: Experiment
    data_root: Path
    folder: Path
    """The precomp folder the experiment reads."""
    stages: Mapping[str, Artifact]
    teacher: Chain | None = None
    """The experiment whose table the student trains on, where the table is not its own."""
    start: Artifact | None = None
    """The training whose weights the student starts from, where it is fine-tuned."""
    members: tuple[Member, ...] = ()
    """The experiments that an ensemble, or a table that is not mined, is made of; `experiment` is then that of one of
    them, under another name."""
    table: Rerank | Fusion | Refresh | None = None
    """How the members make the table, in place of [mining]."""
    weights: tuple[float, ...] | None = None
    """One weight for each member of an ensemble; None weighs all alike."""

    def owner(self, stage: str) -> Chain:
        """The chain that has the stage: this one, or its teacher's where the table comes from a teacher."""
        if stage in self.stages:
            return self
        if self.teacher is None:
            what = "ensemble" if self.is_ensemble else "experiment"
            raise ValueError(f"{what} {self.experiment.name!r} has stages {list(self.stages)}, not {stage!r}.")
        return self.teacher.owner(stage)

    def found(self, stage: str) -> Artifact | None:
        """The stage's artefact, of this chain or its teacher's, if there is such a stage."""
        if stage in self.stages or self.teacher is None:
            return self.stages.get(stage)
        return self.teacher.found(stage)

    def __getitem__(self, stage: str) -> Artifact:
        return self.owner(stage).stages[stage]

    @property
    def is_ensemble(self) -> bool:
        return bool(self.members) and self.table is None

    @property
    def trains_on_table(self) -> bool:
        """Whether the second round draws offline negatives, or batches, from a table."""
        trains = "second_round" in self.stages and self.experiment.weights is None
        return trains and self.experiment.uses_table


@dataclass(frozen=True)
class Member:
    """An experiment that another, a study or a report is made of."""

    asked: str
    """The experiment as it is named, with an override after `@` if need be: "f30k_vsrn@seed=1"."""
    chain: Chain
    stage: str
    """The stage that is needed of it."""

    @property
    def artifact(self) -> Artifact:
        return self.chain[self.stage]

    @property
    def run(self) -> str:
        """The name of its folder below `runs/`."""
        return run_name(*split_member(self.asked))


class Depths(NamedTuple):
    """How many captions an image's list keeps, and how many images a caption's."""

    captions: int
    images: int

    @classmethod
    def of(cls, section: Mining | Rerank | Fusion | Refresh) -> Depths:
        return cls(section.h_captions, section.h_images)

    def named(self, option: str) -> dict[str, int]:
        """The depths as options: {"h_captions": 300, "h_images": 60} for `h`."""
        return {f"{option}_{side}": depth for side, depth in self._asdict().items()}

    def check_within(self, there: Depths, where: str, keeps: str, remedy: str = "", *, option: str = "h") -> None:
        """Refuse lists longer than those that are `there`, which `keeps` names."""
        for side, depth, most in zip(self._fields, self, there, strict=True):
            if depth > most:
                remedy = remedy or f"lower it, or raise h_{side} where it is made"
                raise ValueError(f"{where} {option}_{side} = {depth}, and {keeps} {most}; {remedy}.")


def table_depths(chain: Chain) -> Depths:
    """The depths of the table that the chain has or trains on."""
    owner = chain.owner("hard_negatives")
    made = owner.table or owner.experiment.mining
    assert made is not None  # what else gave the owner its table
    return Depths.of(made)


def table_owner(chain: Chain) -> Chain | None:
    """The chain that has the table that this one has or trains on; None where it needs none."""
    if "hard_negatives" in chain.stages:
        return chain
    return table_owner(chain.teacher) if chain.teacher else None


def check_same_data(name: str, one: Chain, other: Chain) -> None:
    """Refuse a table of other training data: its rows are those of one training split."""
    ours, theirs = (
        [
            chain["dataset"].ingredients["splits"]["train"],
            *(made for key in ("train_images", "noise") if (made := chain["dataset"].ingredients.get(key))),
            *(world.key for world in chain["dataset"].upstream),
        ]
        for chain in (one, other.owner("hard_negatives"))
    )
    if ours != theirs:
        raise ValueError(
            f"{name!r}: {one.experiment.name!r} and {other.experiment.name!r} are of different training data "
            f"([dataset] gives {ours} and {theirs}), so the rows of a table are other images; give both the same, in "
            'an override if need be: "NAME@dataset.train_images=2000".'
        )


def same_queries(one: Chain, other: Chain) -> bool:
    """Whether both are evaluated on the same images and captions, counted alike."""

    def asked(chain: Chain) -> list[Any]:
        dataset, evaluation = chain["dataset"], chain["evaluation"].ingredients
        worlds = [world.key for world in dataset.upstream]
        return [dataset.ingredients["splits"]["dev"], worlds, *(evaluation[k] for k in ("split", "folds", "content"))]

    return asked(one) == asked(other)


def split_member(member: str) -> tuple[str, str]:
    """The experiment and the override that a member of an ensemble names: "f30k_vsrn@seed=1"."""
    name, _, override = member.partition("@")
    return name, override


def run_name(experiment: str, override: str = "") -> str:
    """The folder below `runs/` for an experiment, and one of its own for each override of it."""
    name = Path(experiment).stem
    if override:
        name += f"@{re.sub(r'[^A-Za-z0-9_.=,-]+', '', override)}"
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 17]}-{digest(override)}"
