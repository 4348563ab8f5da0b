"""Report and Ablation: a page about runs and the tables of a study, with all they take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import luigi

from aoq.pipeline.artifact import Artifact
from aoq.pipeline.planning.chain import Member, split_member
from aoq.pipeline.planning.report import PlannedReport, plan_report
from aoq.pipeline.planning.study import PlannedStudy, plan_study
from aoq.tasks.base import MakingTask
from aoq.tasks.stages import Evaluation, SecondRound

DEFAULT = 'demo; demo@second_round.loss.name="online"'


class Comparison(MakingTask):
    """What is made of runs: of their second rounds, unless they are ensembles, and of their evaluations."""

    source: PlannedReport | PlannedStudy

    @property
    def artifact(self) -> Artifact:
        return self.source.artifact

    def runs_needed(self, members: Sequence[Member]) -> Iterator[luigi.Task]:
        for member in reversed(members):  # Luigi looks at the last one first
            experiment, override = split_member(member.asked)
            for task in (SecondRound, Evaluation):
                if task.stage in member.chain.stages:
                    yield self.clone(task, experiment=experiment, override=override)  # type: ignore[no-untyped-call]


class Report(Comparison):
    """Any number of runs side by side, on one self-contained HTML page."""

    stage = "report"

    runs: luigi.Parameter = luigi.Parameter(
        default=DEFAULT, description='experiments, overrides after @, between semicolons: "demo; demo@seed=1"'
    )

    @cached_property
    def source(self) -> PlannedReport:
        return plan_report(self.runs, **self.roots)

    @property
    def subject(self) -> str:
        return ", ".join(member.run for member in self.source.members)

    @property
    def alias(self) -> str:
        return f"report_{self.artifact.key}"

    def requires(self) -> Iterator[luigi.Task]:
        return self.runs_needed(self.source.members)


class Ablation(Comparison):
    """Every arm of a study on every model with every seed, and the tables of it all."""

    stage = "study"

    study: luigi.Parameter = luigi.Parameter(default="", description="a name in configs/studies/, or a .toml file")

    @cached_property
    def source(self) -> PlannedStudy:
        return plan_study(self.study, **self.roots)

    @property
    def subject(self) -> str:
        return self.source.study.name

    @property
    def alias(self) -> str:
        return f"study_{self.subject}"

    def requires(self) -> Iterator[luigi.Task]:
        return self.runs_needed(self.source.cells)
