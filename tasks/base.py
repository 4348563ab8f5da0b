"""The base task: make an artefact under its lock, in its work directory, and publish it by one rename."""

from __future__ import annotations

import argparse
import importlib
import logging
import re
import traceback
from abc import abstractmethod
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import luigi
from luigi.interface import core

from aoq.pipeline.artifact import Artifact, differences
from aoq.pipeline.build import read_artifact_manifest
from aoq.pipeline.config.load import split_member
from aoq.pipeline.console import name_lines, visible
from aoq.pipeline.engine import describe_exit, torchrun_rank
from aoq.pipeline.settings import configured_engine, configured_path, runs_root
from aoq.pipeline.stages import plan
from aoq.pipeline.stages.report import make_report
from aoq.pipeline.stages.study import make_study
from aoq.pipeline.training.metrics import read_metrics

logger = logging.getLogger(__name__)
FORKED = ("aoq.pipeline.stages.train", "aoq.pipeline.stages.encoding", "aoq.pipeline.mining.mine", "torch._dynamo")
"""Modules to import before forking, since making artefacts imports them; an optimiser's first step needs the last."""

_MAKERS: dict[str, Callable[..., None]] = {**plan.MAKERS, "report": make_report, "study": make_study}


class Described(luigi.Parameter):
    """Text that Luigi accepts as --experiment and as --SecondRound-experiment; the help lists only the first."""

    @classmethod
    def _parser_kwargs(cls, param_name: str, task_name: str | None = None) -> dict[str, Any]:
        options: dict[str, Any] = super()._parser_kwargs(param_name, task_name)  # type: ignore[no-untyped-call]
        if task_name:
            options["action"] = lambda **given: argparse._StoreAction(**{**given, "help": argparse.SUPPRESS})
        return options


class MakingTask(luigi.Task):
    """One artefact. Nothing computes with torch before `run`: a fork after that would hang."""

    stage: ClassVar[str]
    """Name of the stage; by default the class's: `second_round` for SecondRound."""

    data_root: Described = Described(
        default="", significant=False, description="the folder of dataset folders; default [paths] in luigi.cfg"
    )
    artifact_root: Described = Described(
        default="", significant=False, description="the folder of artefacts; default [paths] in luigi.cfg"
    )

    def __init_subclass__(cls) -> None:
        cls.stage = vars(cls).get("stage") or re.sub("(?<!^)(?=[A-Z])", "_", cls.__name__).lower()

    def __init__(self, *arguments: object, **parameters: object) -> None:
        super().__init__(*arguments, **parameters)  # type: ignore[no-untyped-call]
        _ = self.artifact  # refuses an invalid experiment before anything is scheduled

    @property
    @abstractmethod
    def source(self) -> Any:
        """The plan that the stage's maker takes."""

    @property
    def artifact(self) -> Artifact:
        return self.source.artifact

    @property
    @abstractmethod
    def alias(self) -> str:
        """Folder below `runs/` that holds the link to the artefact."""

    @property
    def subject(self) -> str:
        return self.alias

    @property
    def title(self) -> str:
        return f"{self.stage} of {self.subject}"

    def with_stage(self, task: type[MakingTask], experiment: str) -> luigi.Task:
        """Return another task with the same parameters, or with those of a named experiment and its override."""
        name, override = split_member(experiment)
        return self.clone(task, **{"experiment": name, "override": override} if experiment else {})  # type: ignore[no-untyped-call]

    def process_resources(self) -> dict[str, int]:
        """Let one worker at a time make an artefact; workers that need it run other tasks meanwhile."""
        return {**self.resources, self.artifact.key: 1}

    @property
    def roots(self) -> dict[str, Path]:
        return {name: configured_path(name, getattr(self, name)) for name in ("data_root", "artifact_root")}

    def output(self) -> luigi.LocalTarget:
        return luigi.LocalTarget(str(self.artifact.manifest_path))

    def deps(self) -> Any:
        """Import FORKED once for all forked processes; Luigi calls this only for missing artefacts."""
        for module in FORKED:
            importlib.import_module(module)
        return super().deps()  # type: ignore[no-untyped-call]

    def run(self) -> None:
        if torchrun_rank():
            from aoq.pipeline.stages.processes import follow
            from aoq.pipeline.stages.train import train_rank

            part = partial(train_rank, self.source, self.stage, None)
            follow(configured_engine(tasks=core().workers), self.artifact, part)
        elif not self.artifact.exists():  # another task may have made it meanwhile
            self._make()
        self.link()

    @property
    def alias_path(self) -> Path:
        return runs_root(self.roots["artifact_root"]) / self.alias / self.stage

    def link(self) -> None:
        """Link the run's name to the artefact, which another run may have made; a reused name is linked anew."""
        self.artifact.link(self.alias_path)

    def _make(self) -> None:
        try:
            with self.artifact.building() as build:
                if build is not None:
                    engine = configured_engine(tasks=core().workers)
                    if engine.tasks > 1:
                        name_lines(self.title)
                    logger.info("%s: %s", self.title, self.artifact.path)
                    self._log_reason()
                    (build.directory / "error.txt").unlink(missing_ok=True)
                    _MAKERS[self.stage](self.source, build, engine)
        except Exception:
            with suppress(OSError):  # the disk may be what failed
                (self.artifact.work / "error.txt").write_text(visible(traceback.format_exc()), encoding="utf-8")
            if torchrun_rank() is not None:
                from aoq.pipeline.stages.processes import announce_failure

                announce_failure(self.artifact)
            raise
        metrics = self.artifact.manifest().get("metrics")
        split = self.artifact.ingredients.get("split", "dev")  # a training's metrics are those of its best epoch on dev
        best = f"  {split} rsum {metrics['rsum']:.1f}" if metrics else ""
        logger.info("%s: done%s%s", self.title, best, self.trained())

    def _log_reason(self) -> None:
        """Log the differences from the artefact that the run's link leads to, if it exists."""
        linked = self.alias_path.resolve()
        with suppress(ValueError, OSError):  # no link leads to an intact artefact
            changes = differences(self.artifact.recipe, read_artifact_manifest(linked)["recipe"])
            texts = [f"{place.removeprefix('ingredients.')} {now}, was {old}" for place, (now, old) in changes.items()]
            logger.info("making %s again: %s", self.title, "; ".join(texts))

    def trained(self) -> str:
        """Count the finished trainings of the study, if this is one of them."""
        return ""


@MakingTask.event_handler(luigi.Event.DEPENDENCY_PRESENT)  # type: ignore[no-untyped-call, untyped-decorator]
def _log_presence(task: MakingTask) -> None:
    task.link()
    logger.info("%s exists: %s", task.title, task.artifact.path)


@MakingTask.event_handler(luigi.Event.PROCESS_FAILURE)  # type: ignore[no-untyped-call, untyped-decorator]
def _log_death(task: MakingTask, message: str) -> None:
    """Log how a task's process ended and what to try; Luigi's message ends with the exit code."""
    log, is_training = task.artifact.work / "metrics.jsonl", "training" in task.resources
    lines = read_metrics(log) if is_training and log.exists() else []
    reached = f" after step {lines[-1]['step']:,} (epoch {lines[-1]['epoch'] + 1})" if lines else ""
    less = "batch_size, set chunk" if is_training else "[engine] mining_memory_mb"
    remedy = f"Run again: finished work is kept. If memory ran out, lower {less}, or take fewer --workers."
    logger.error("%s %s%s. %s", task.title, describe_exit(int(message.rpartition(" ")[2])), reached, remedy)
