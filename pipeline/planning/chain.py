"""The chain of artefacts an experiment consists of; `aoq.pipeline.planning.stages` plans it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aoq.pipeline.artifact import Artifact, digest
from aoq.pipeline.config.combinations import Fusion, Rerank
from aoq.pipeline.config.experiment import Experiment
from aoq.pipeline.config.refresh import Refresh

LONGEST_NAME = 200
"""Of a folder: file systems take 255 bytes."""


@dataclass(frozen=True)
class Chain:
    """Every artefact of one experiment, by stage, in the order they are made; with the experiment itself.

    The `control` is the second round's student, schedule and seed on the online loss alone: a first round, and the
    teacher's own where that has the same schedule.
    """

    experiment: Experiment
    data_root: Path
    folder: Path
    """The precomp folder the experiment reads."""
    stages: Mapping[str, Artifact]
    teacher: Chain | None = None
    members: tuple[Chain, ...] = ()
    """Those whose similarities an ensemble averages, of whose tables a rerank or a fusion makes one, or the student
    that makes one anew; `experiment` is then that of one of them, under another name."""
    asked: tuple[str, ...] = ()
    """The members as they are named, overrides and all."""
    uses: tuple[str, ...] = ()
    """The stage that is needed of each member."""
    weights: tuple[float, ...] | None = None
    table: Rerank | Fusion | Refresh | None = None
    """How the members make the table, in place of [mining]."""

    def owner(self, stage: str) -> Chain:
        """Whose stage it is: this chain's, or its teacher's where the table comes from a teacher."""
        if stage in self.stages:
            return self
        if self.teacher is None:
            what = "ensemble" if self.members and self.table is None else "experiment"
            raise ValueError(f"{what} {self.experiment.name!r} has stages {list(self.stages)}, not {stage!r}.")
        return self.teacher.owner(stage)

    def __getitem__(self, stage: str) -> Artifact:
        return self.owner(stage).stages[stage]


def table_depths(chain: Chain) -> dict[str, int]:
    """How many captions an image's list keeps, and how many images a caption's."""
    owner = chain.owner("hard_negatives")
    made = owner.table or owner.experiment.mining
    assert made is not None  # what else gave the owner its table
    return {"captions": made.h_captions, "images": made.h_images}


def table_owner(chain: Chain) -> Chain | None:
    """Whose table it is or trains on; None where it has to do with none."""
    if "hard_negatives" in chain.stages:
        return chain
    return table_owner(chain.teacher) if chain.teacher else None


def data_stages(chain: Chain) -> dict[str, Artifact]:
    """What its data are made by."""
    return {stage: chain.stages[stage] for stage in ("world", "dataset") if stage in chain.stages}


def check_same_data(name: str, one: Chain, other: Chain) -> None:
    """A table's rows are those of one training split."""
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
        return [
            dataset.ingredients["splits"]["dev"],
            [world.key for world in dataset.upstream],
            *(evaluation[option] for option in ("split", "folds", "content")),
        ]

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
