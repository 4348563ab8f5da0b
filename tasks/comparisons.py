"""Report and Ablation: a page about runs, and the tables of a study."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import luigi

from aoq.pipeline.config.load import split_member
from aoq.pipeline.stages.chain import Member
from aoq.pipeline.stages.report import PlannedReport, plan_report
from aoq.pipeline.stages.study import PlannedStudy, plan_study
from aoq.tasks.base import Described, MakingTask
from aoq.tasks.stages import ArtifactTask, Evaluation, SecondRound


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
