"""The chain of artefacts of an experiment; `aoq.pipeline.planning.planner` plans it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from aoq.pipeline.artifact import Artifact
from aoq.pipeline.config.dataset import TRAINING_DATA
from aoq.pipeline.config.experiment import Experiment
from aoq.pipeline.config.overrides import override_text, split_member
from aoq.pipeline.config.tables import Fusion, Mining, Refresh, Rerank
from aoq.pipeline.digests import digest
from aoq.pipeline.terminal import did_you_mean

MARKS = r"""[A-Za-z0-9_.=,\-\s"'{}\[\]@:]+"""
"""Characters of an override that a folder's name has, or that it can do without."""
LONGEST_NAME = 200
"""Characters in a folder's name; file systems allow 255 bytes."""


@dataclass(frozen=True)
class Chain:
    """Every artefact of one experiment, by stage, in the order of their making; and the experiment itself.

    A stage is an artefact's use in the experiment; the artefact's own `stage` is what made it. The `control`, the
    second round's student, schedule and seed on the online loss alone, is made as a first round, and is the teacher's
    own where that has the same schedule.
    """

    experiment: Experiment
    data_root: Path
    folder: Path
    """The precomp folder the experiment reads."""
    stages: Mapping[str, Artifact]
    teacher: Chain | None = None
    """Experiment with the table that the student trains on, unless the table is its own."""
    start: Artifact | None = None
    """Training whose weights the student starts from, if it is fine-tuned."""
    members: tuple[Member, ...] = ()
    """Experiments that an ensemble, or a table that is not mined, is made of; `experiment` is then that of one of
    them, under another name."""
    table: Rerank | Fusion | Refresh | None = None
    """Recipe of the table from the members, instead of [mining]."""
    weights: tuple[float, ...] | None = None
    """One weight for each member of an ensemble; None means equal weights."""

    @property
    def lineage(self) -> tuple[Chain, ...]:
        """Itself, its teacher, and its teacher's teachers."""
        return (self, *(self.teacher.lineage if self.teacher else ()))

    def owner(self, stage: str) -> Chain:
        """Chain that has the stage: this one, or its teacher's if the table comes from a teacher."""
        for chain in self.lineage:
            if stage in chain.stages:
                return chain
        known = [*dict.fromkeys(reached for chain in reversed(self.lineage) for reached in chain.stages)]
        what, question = "ensemble" if self.is_ensemble else "experiment", did_you_mean(stage, known)
        said = f"{what} {self.experiment.name!r} has stages {known}, not {stage!r}"
        raise ValueError(f"{said}; {question}" if question else f"{said}.")

    def __getitem__(self, stage: str) -> Artifact:
        return self.owner(stage).stages[stage]

    @property
    def is_ensemble(self) -> bool:
        return bool(self.members) and self.table is None

    @property
    def trains_on_table(self) -> bool:
        """Return whether the second round draws offline negatives, or batches, from a table."""
        trains = "second_round" in self.stages and self.experiment.weights is None
        return trains and self.experiment.uses_table


@dataclass(frozen=True)
class Member:
    """An experiment that another one, a study or a report includes."""

    asked: str
    """The experiment by name, with an optional override after `@`: "f30k_vsrn@seed=1"."""
    chain: Chain
    stage: str
    """The stage that is needed of it."""

    @property
    def artifact(self) -> Artifact:
        return self.chain[self.stage]

    @property
    def run(self) -> str:
        """Name of its folder below `runs/`."""
        return run_name(*split_member(self.asked))


class Depths(NamedTuple):
    """Length of images' lists (captions kept), and of captions' lists (images kept)."""

    captions: int
    images: int

    @classmethod
    def of(cls, section: Mining | Rerank | Fusion | Refresh) -> Depths:
        return cls(section.h_captions, section.h_images)

    def named(self, option: str) -> dict[str, int]:
        """Give the depths as options: {"h_captions": 300, "h_images": 60} for `h`."""
        return {f"{option}_{side}": depth for side, depth in self._asdict().items()}

    def check_within(self, there: Depths, where: str, keeps: str, remedy: str = "", *, option: str = "h") -> None:
        """Refuse lists longer than those that are `there`, as kept by `keeps`."""
        for side, depth, most in zip(self._fields, self, there, strict=True):
            if depth > most:
                remedy = remedy or f"lower it, or raise h_{side} where it is made"
                raise ValueError(f"{where} {option}_{side} = {depth}, and {keeps} {most}; {remedy}.")


def table_depths(chain: Chain) -> Depths:
    """Depths of the table that the chain has or trains on."""
    owner = chain.owner("hard_negatives")
    made = owner.table or owner.experiment.mining
    assert made is not None  # nothing else can have made the owner's table
    return Depths.of(made)


def table_owner(chain: Chain) -> Chain | None:
    """Chain with the table that this one has or trains on; None if it needs none."""
    return next((each for each in chain.lineage if "hard_negatives" in each.stages), None)


def teacher_of(chain: Chain) -> Member | None:
    """Training whose model scored the table that this one has or trains on; None if none did."""
    if (owner := table_owner(chain)) is None:
        return None
    if "first_round" in owner.stages:
        return Member(owner.experiment.name, owner, "first_round")
    return next((member for member in reversed(owner.members) if member.stage == "second_round"), None)


def check_same_data(name: str, one: Chain, other: Chain) -> None:
    """Refuse a table of other training data: its rows belong to one training split."""
    ours, theirs = (
        [
            chain["dataset"].ingredients["splits"]["train"],
            *(made for key in ("train_images", "noise") if (made := chain["dataset"].ingredients.get(key))),
            *(world.key for world in chain["dataset"].upstream),
        ]
        for chain in (one, other.owner("hard_negatives"))
    )
    if ours != theirs:
        given = "; ".join(map(_training_data, (one, other.owner("hard_negatives"))))
        raise ValueError(
            f"{name!r}: {one.experiment.name!r} and {other.experiment.name!r} are of different training data "
            f"({given}), so the rows of a table are other images; give both the same, in an override if need be: "
            '"NAME@dataset.train_images=2000".'
        )


def _training_data(chain: Chain) -> str:
    """Describe what `check_same_data` compares, as an override."""
    given = chain.experiment.dataset.model_dump(mode="json", include={*TRAINING_DATA}, exclude_unset=True)
    return override_text({"dataset": given})


def same_queries(one: Chain, other: Chain) -> bool:
    """Return whether both are evaluated on the same images and captions, counted alike."""

    def asked(chain: Chain) -> list[Any]:
        dataset, evaluation = chain["dataset"], chain["evaluation"].ingredients
        worlds = [world.key for world in dataset.upstream]
        return [dataset.ingredients["splits"]["dev"], worlds, *(evaluation[k] for k in ("split", "folds", "content"))]

    return asked(one) == asked(other)


def trains_as_control(one: Chain, other: Chain) -> bool:
    """True if the one's second round is the other's control."""
    control = other.stages.get("control")
    return control is not None and control.key == one["second_round"].key


def run_name(experiment: str, override: str = "") -> str:
    """Name the folder below `runs/` of an experiment; each override has one of its own."""
    name = Path(experiment).stem
    if override:
        name += f"@{re.sub(r'[^A-Za-z0-9_.=,@-]+', '', override)}"
        if re.sub(MARKS, "", override):  # letters or a path are lost: two overrides may be left alike
            name += f"-{digest(override)[:8]}"
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 17]}-{digest(override)}"
