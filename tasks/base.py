"""The one base task: an artefact is made under its lock, in its work directory, and published by one rename."""

from __future__ import annotations

import importlib
import logging
import traceback
from contextlib import suppress
from functools import cached_property
from typing import ClassVar

import luigi

from pipeline.artifact import Artifact
from pipeline.chain import Chain, run_name
from pipeline.settings import configured_path, engine, runs_root
from pipeline.stages import plan

logger = logging.getLogger(__name__)


class ArtifactTask(luigi.Task):
    """A stage of an experiment. Nothing here imports torch before `run`: a fork after torch computes would hang."""

    stage: ClassVar[str]

    experiment: luigi.Parameter = luigi.Parameter(default="demo", description="a name in configs/, or a .toml file")
    override: luigi.Parameter = luigi.Parameter(
        default="", description="changes to the experiment, such as: seed=1, second_round.epochs=4"
    )
    data_root: luigi.Parameter = luigi.Parameter(
        default="",
        significant=False,
        description="the folder of dataset folders; default [paths] in luigi.cfg",
    )
    artifact_root: luigi.Parameter = luigi.Parameter(
        default="", significant=False, description="where artefacts are kept; default [paths] in luigi.cfg"
    )

    def __init__(self, *arguments: object, **parameters: object) -> None:
        super().__init__(*arguments, **parameters)  # type: ignore[no-untyped-call]
        _ = self.artifact  # a mistake in the experiment ends here, before anything is scheduled

    @cached_property
    def chain(self) -> Chain:
        return plan(
            self.experiment,
            override=self.override,
            data_root=configured_path("data_root", self.data_root),
            artifact_root=configured_path("artifact_root", self.artifact_root),
        )

    @property
    def artifact(self) -> Artifact:
        return self.chain[self.stage]

    def stage_task(self, task: type[ArtifactTask], **changed: str) -> ArtifactTask:
        """Another stage with the same parameters but for those `changed`."""
        return self.clone(task, **changed)  # type: ignore[no-untyped-call]

    def output(self) -> luigi.LocalTarget:
        return luigi.LocalTarget(str(self.artifact.manifest_path))

    def run(self) -> None:
        from pipeline.engine import Engine

        produce = getattr(importlib.import_module("pipeline.produce"), f"produce_{self.stage}")
        settings = engine()
        try:
            with self.artifact.building() as build:
                if build is not None:
                    logger.info("%s of %s: %s", self.stage, self.experiment, self.artifact.path)
                    (build.directory / "error.txt").unlink(missing_ok=True)
                    produce(self.chain.owner(self.stage), build, Engine(**settings.param_kwargs))
        except Exception:
            self._keep_traceback()
            raise
        metrics = self.artifact.manifest().get("metrics")
        best = f"  dev rsum {metrics['rsum']:.1f}" if metrics else ""
        logger.info("%s of %s: done%s", self.stage, self.experiment, best)
        self.artifact.link(runs_root(self.artifact_root) / run_name(self.experiment, self.override) / self.stage)

    def _keep_traceback(self) -> None:
        with suppress(OSError):  # the disk may be what failed
            (self.artifact.work / "error.txt").write_text(traceback.format_exc(), encoding="utf-8")


@ArtifactTask.event_handler(luigi.Event.DEPENDENCY_PRESENT)  # type: ignore[no-untyped-call, untyped-decorator]
def _say_it_is_there(task: ArtifactTask) -> None:
    logger.info("%s of %s is there: %s", task.stage, task.experiment, task.artifact.path)
