"""Report: a page about runs, with all it takes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import luigi

from aoq.pipeline.artifact import Artifact
from aoq.pipeline.planning.chain import split_member
from aoq.pipeline.planning.report import ReportPlan, plan_report
from aoq.tasks.base import MakingTask
from aoq.tasks.stages import Evaluation, SecondRound

DEFAULT = 'demo; demo@second_round.loss.name="online"'


class Report(MakingTask):
    """Any number of runs side by side, on one self-contained HTML page."""

    stage = "report"

    runs: luigi.Parameter = luigi.Parameter(
        default=DEFAULT, description='experiments, overrides after @, between semicolons: "demo; demo@seed=1"'
    )

    @cached_property
    def source(self) -> ReportPlan:
        return plan_report(self.runs, **self.roots)

    @property
    def subject(self) -> str:
        return ", ".join(name for name, _ in self.source.named)

    @property
    def alias(self) -> str:
        return f"report_{self.artifact.key}"

    @property
    def artifact(self) -> Artifact:
        return self.source.artifact

    def requires(self) -> Iterator[luigi.Task]:
        for asked, (_, chain) in zip(self.source.asked, self.source.named, strict=True):
            experiment, override = split_member(asked)
            for task in (SecondRound, Evaluation):  # the page tells of both; an ensemble trains nothing
                if task.stage in chain.stages:
                    yield self.clone(task, experiment=experiment, override=override)  # type: ignore[no-untyped-call]
