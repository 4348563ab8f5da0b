"""Ablation: a study, with all it takes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import luigi

from aoq.pipeline.artifact import Artifact
from aoq.pipeline.planning.study import StudyPlan, plan_study
from aoq.tasks.base import MakingTask
from aoq.tasks.stages import Evaluation, SecondRound


class Ablation(MakingTask):
    """Every arm of a study on every model with every seed, and the tables of it all."""

    stage = "study"

    study: luigi.Parameter = luigi.Parameter(default="", description="a name in configs/studies/, or a .toml file")

    @cached_property
    def source(self) -> StudyPlan:
        return plan_study(self.study, **self.roots)

    @property
    def subject(self) -> str:
        return self.source.study.name

    @property
    def alias(self) -> str:
        return f"study_{self.source.study.name}"

    @property
    def artifact(self) -> Artifact:
        return self.source.artifact

    def requires(self) -> Iterator[luigi.Task]:
        for cell in reversed(self.source.cells):  # Luigi looks at the last one first
            for task in (SecondRound, Evaluation):  # the tables tell of both
                yield self.clone(task, experiment=cell.experiment, override=cell.override)  # type: ignore[no-untyped-call]
