"""The experiment arguments that commands share."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click

from aoq.pipeline.artifact import Artifact
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


def all_stages(chain: Chain) -> dict[str, Artifact]:
    """The chain's artefacts, after its members' and those of its teacher's table, by names that say whose they are."""
    stages = {f"{member.asked} {member.stage}": member.artifact for member in chain.members}
    if (owner := chain.teacher) is not None:
        name, of_student = owner.experiment.name, ("screen", "control", "second_round", "evaluation")
        while owner.teacher is not None:
            owner = owner.teacher
        stages |= {f"{name} {stage}": made for stage, made in owner.stages.items() if stage not in of_student}
    return stages | dict(chain.stages)
