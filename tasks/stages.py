"""The tasks: an experiment's stages in their order, a report about runs, and the tables of a study."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache, cached_property
from typing import ClassVar, Final

import luigi

from aoq.pipeline.artifact import Artifact
from aoq.pipeline.config.load import split_member
from aoq.pipeline.stages.chain import Cell, Chain, Member, run_name
from aoq.pipeline.stages.plan import plan
from aoq.pipeline.stages.report import PlannedReport, plan_report
from aoq.pipeline.stages.study import PlannedStudy, plan_study
from aoq.tasks.base import Described, MakingTask

TRAINING: Final = {"training": 1}
"""Resource that limits concurrent trainings; [resources] in luigi.cfg sets its number."""
_plan_once = cache(plan)  # once for all stages of an experiment: a plan reads samples of its data


class ArtifactTask(MakingTask):
    """A stage of an experiment."""

    cells: ClassVar[dict[tuple[str, str], Cell]] = {}
    """Trainings of the running study, by experiment and override."""

    experiment: Described = Described(default="demo", description="a name in configs/, or a .toml file")
    override: Described = Described(
        default="", description="changes to the experiment, such as: seed=1, second_round.epochs=4"
    )

    @cached_property
    def chain(self) -> Chain:
        return _plan_once(self.experiment, override=self.override, **self.roots)

    @property
    def alias(self) -> str:
        return run_name(self.experiment, self.override)

    @property
    def subject(self) -> str:
        cell = self.cells.get((self.experiment, self.override))
        return self.alias if cell is None else f"{cell.model}, {cell.arm}, seed {cell.seed}"

    def trained(self) -> str:
        if self.stage != "second_round" or not self.cells:
            return ""
        done = sum(cell.chain["second_round"].exists() for cell in self.cells.values())
        return f"  {done} of {len(self.cells)} trainings"

    @property
    def artifact(self) -> Artifact:
        return self.chain[self.stage]

    @property
    def source(self) -> Chain:
        return self.chain.owner(self.stage)

    def requires(self) -> Iterator[luigi.Task]:
        for experiment, stage in self.chain.needed(self.stage):
            yield self.with_stage(TASKS[stage], experiment)


class DemoWorld(ArtifactTask):
    """The generated world, as a precomp folder."""

    stage = "world"


class Prepared(ArtifactTask):
    """Photographs and captions, as a precomp folder."""


class Dataset(ArtifactTask):
    """The checked folder's vocabulary and tokenised captions."""


class FirstRound(ArtifactTask):
    """The teacher, trained on in-batch negatives."""

    resources = TRAINING


class Embeddings(ArtifactTask):
    """The teacher's embeddings of every training image and caption."""


class HardNegatives(ArtifactTask):
    """The negative table: the top-h of every training image and caption; mined, fused or refreshed."""


class Screen(ArtifactTask):
    """The flags of the experiment's [screen] on the negative table."""


class Control(ArtifactTask):
    """The second round's student and schedule without a table and teachers' scores: the baseline of round two."""

    resources = TRAINING


class SecondRound(ArtifactTask):
    """The student, trained on its own experiment's table or another one's."""

    resources = TRAINING


class Evaluation(ArtifactTask):
    """Metrics on the evaluation split: of the second round, or of an ensemble of second rounds."""


class StudentEmbeddings(ArtifactTask):
    """The student's embeddings of every training image and caption, to teach another student."""


TASKS: Final[dict[str, type[ArtifactTask]]] = {task.stage: task for task in ArtifactTask.__subclasses__()}
"""The task of each stage."""


class Report(MakingTask):
    """Any number of runs side by side on one self-contained HTML page."""

    runs: Described = Described(
        default='demo; demo@second_round.loss.name="online"',
        description='experiments with optional overrides after @, separated by semicolons: "demo; demo@seed=1"',
    )

    @cached_property
    def source(self) -> PlannedReport:
        return plan_report(self.runs, **self.roots)

    @property
    def alias(self) -> str:
        return f"report_{self.artifact.key}"

    @property
    def subject(self) -> str:
        return ", ".join(member.run for member in self.source.members)

    def requires(self) -> Iterator[luigi.Task]:
        return _run_tasks(self, self.source.members)


class Ablation(MakingTask):
    """Every arm of a study on every model with every seed, and their tables."""

    stage = "study"

    study: Described = Described(default="", description="a name in configs/studies/, or a .toml file")

    @cached_property
    def source(self) -> PlannedStudy:
        planned = plan_study(self.study, **self.roots)
        ArtifactTask.cells |= {split_member(cell.reference): cell for cell in planned.cells}
        return planned

    @property
    def alias(self) -> str:
        return f"study_{self.subject}"

    @property
    def subject(self) -> str:
        return self.source.study.name

    def requires(self) -> Iterator[luigi.Task]:
        return _run_tasks(self, self.source.cells)


def _run_tasks(task: MakingTask, members: Sequence[Member]) -> Iterator[luigi.Task]:
    """Yield each run's evaluation and, except for ensembles, its second round."""
    for member in reversed(members):  # Luigi looks at the last one first
        for needed in (SecondRound, Evaluation):
            if needed.stage in member.chain.stages:
                yield task.with_stage(needed, member.reference)
