"""The experiment arguments that commands share."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click

from aoq.pipeline.planning.chain import Chain
from aoq.pipeline.planning.planner import plan
from aoq.pipeline.settings import configured_path


def experiment_chain(command: Callable[..., Any]) -> Callable[..., Any]:
    """Take EXPERIMENT, --override, --data-root and --artifact-root, and call the command with the chain."""

    @click.argument("experiment")
    @override
    @roots
    @wraps(command)
    def with_chain(experiment: str, override: str, folders: dict[str, Path], **options: Any) -> Any:
        return command(plan(experiment, override=override, **folders), **options)

    return with_chain


override = click.option(
    "--override", default="", help="Changes to the experiment, such as: seed=1, second_round.epochs=4"
)


def roots(command: Callable[..., Any]) -> Callable[..., Any]:
    """Take --data-root and --artifact-root, and give the command both as `folders`."""

    @click.option("--data-root", default="", help="The folder of dataset folders; default: [paths] in luigi.cfg.")
    @click.option("--artifact-root", default="", help="Where artefacts are kept; default: [paths] in luigi.cfg.")
    @wraps(command)
    def with_folders(data_root: str, artifact_root: str, **options: Any) -> Any:
        folders = {"data_root": data_root, "artifact_root": artifact_root}
        return command(folders={name: configured_path(name, given) for name, given in folders.items()}, **options)

    return with_folders


def all_stages(chain: Chain) -> dict[str, Any]:
    """The chain's artefacts with those of its teacher and members before them, by a name that says whose they are."""
    stages: dict[str, Any] = {f"{member.asked} {member.stage}": member.artifact for member in chain.members}
    if chain.teacher:
        stages |= {f"{chain.teacher.experiment.name} {stage}": a for stage, a in _table_stages(chain.teacher).items()}
    return stages | dict(chain.stages)


def _table_stages(chain: Chain) -> dict[str, Any]:
    """What it takes to make the chain's table."""
    if chain.teacher:
        return _table_stages(chain.teacher)
    of_student = ("screen", "control", "second_round", "evaluation")
    return {stage: a for stage, a in chain.stages.items() if stage not in of_student}
