"""Stages and their dependencies: Prepared, Dataset, FirstRound, Embeddings, HardNegatives, Screen and so on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import luigi
from luigi.util import requires

from aoq.pipeline.planning.chain import Chain
from aoq.tasks.base import ArtifactTask

TRAINING: Final = {"training": 1}
"""Resource that limits trainings at a time; its number is in [resources] of luigi.cfg."""


class DemoWorld(ArtifactTask):
    """The generated world, as a precomp folder."""

    stage = "world"


class Prepared(ArtifactTask):
    """Photographs and captions, as a precomp folder."""

    stage = "prepared"


class Dataset(ArtifactTask):
    """The checked folder's vocabulary and tokenised captions."""

    stage = "dataset"

    def requires(self) -> Iterator[luigi.Task]:
        if "world" in self.chain.stages:
            yield self.of(DemoWorld)
        if "prepared" in self.chain.stages:
            yield self.of(Prepared)


class FirstRound(ArtifactTask):
    """The teacher, trained on in-batch negatives."""

    stage = "first_round"
    resources = TRAINING

    def requires(self) -> Iterator[luigi.Task]:
        yield _own_dataset(self)


class Embeddings(ArtifactTask):
    """The teacher's embeddings of every training image and caption."""

    stage = "embeddings"

    def requires(self) -> Iterator[luigi.Task]:
        encoder = self.chain.owner(self.stage).experiment.teacher_encoder
        yield self.of(FirstRound) if encoder is None else _own_dataset(self)


class HardNegatives(ArtifactTask):
    """The negative table: the top-h of every training image and caption; mined, fused or refreshed."""

    stage = "hard_negatives"

    def requires(self) -> Iterator[luigi.Task]:
        owner = self.chain.owner(self.stage)
        return _of_members(self, owner) if owner.members else iter([self.of(Embeddings)])


class Screen(ArtifactTask):
    """The negative table as the experiment's [screen] sees it."""

    stage = "screen"

    def requires(self) -> Iterator[luigi.Task]:
        yield self.of(Dataset)
        yield self.of(HardNegatives)
        screen = self.chain.experiment.screen
        if screen is not None and screen.needs_vectors:
            yield self.of(Embeddings)


@requires(Dataset)
class Control(ArtifactTask):
    """The second round's student and schedule without offline negatives: the baseline of round two."""

    stage = "control"
    resources = TRAINING


class SecondRound(ArtifactTask):
    """The student, trained on the table of its own teacher or of another experiment."""

    stage = "second_round"
    resources = TRAINING

    def requires(self) -> Iterator[luigi.Task]:
        yield self.of(Dataset)
        if self.chain.trains_on_table:
            yield self.of(HardNegatives)
            if "screen" in self.chain.stages:
                yield self.of(Screen)
            if self.chain.experiment.sampling.guide_margin is not None:
                yield self.of(Embeddings)
            start = self.chain.experiment.student.start
            if start == "control":
                yield self.of(Control)
            elif start == "teacher" and not self.chain.owner("hard_negatives").members:  # else: made by then
                yield self.of(FirstRound)


class Evaluation(ArtifactTask):
    """Metrics on the evaluation split: of the second round, or of an ensemble of second rounds."""

    stage = "evaluation"

    def requires(self) -> Iterator[luigi.Task]:
        return _of_members(self, self.chain) if self.chain.members else iter([self.of(SecondRound)])


TASKS: Final[dict[str, type[ArtifactTask]]] = {
    task.stage: task
    for task in (
        DemoWorld,
        Prepared,
        Dataset,
        FirstRound,
        Embeddings,
        HardNegatives,
        Screen,
        Control,
        SecondRound,
        Evaluation,
    )
}
"""The task that makes each stage of an experiment, in the order in which they are made."""


def _own_dataset(task: ArtifactTask) -> luigi.Task:
    """Return the dataset of the stage's own experiment, which may have another vocabulary."""
    asked, chain = "", task.chain
    while task.stage not in chain.stages and chain.teacher is not None:
        asked, chain = chain.experiment.teacher or "", chain.teacher
    return task.of(Dataset, asked)


def _of_members(task: ArtifactTask, chain: Chain) -> Iterator[luigi.Task]:
    for member in chain.members:
        yield task.of(HardNegatives if member.stage == HardNegatives.stage else SecondRound, member.asked)
