"""`aoq run`, `study` and `evaluate`: Luigi's tasks, with its exit codes."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from aoq.pipeline.cli.options import (
    COUNT,
    EXPERIMENT,
    ROUND,
    STAGES,
    STUDY,
    override,
    together,
    with_default,
    with_override,
)
from aoq.pipeline.cli.output import ROUNDS, echo, echo_next, typed
from aoq.pipeline.settings import configured_path, set_engine
from aoq.pipeline.stages.chain import Chain
from aoq.pipeline.stages.plan import plan

if TYPE_CHECKING:
    from aoq.tasks.base import MakingTask

COMPARED = {"second_round": (), "control": ("--round", "control")}
"""Options of `aoq run` for the two trainings that `aoq results` compares."""

task_options = together(
    click.option("--data-root", default="", help="The folder of dataset folders; default: [paths] in luigi.cfg."),
    click.option("--artifact-root", default="", help="Where artefacts are kept; default: [paths] in luigi.cfg."),
    with_default("--workers", default=1, type=COUNT, help="Tasks at a time."),
    click.option("--threads", type=click.IntRange(min=0), help="Default: [engine] in luigi.cfg; 0 takes all cores."),
    click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), help="Default: [engine] in luigi.cfg."),
)


@click.command()
@click.argument("experiment", type=EXPERIMENT)
@click.option(
    "--round",
    "stage",
    type=ROUND,
    metavar="ROUND",
    help=f"one (the teacher), two (the student), control, or a stage: {', '.join(STAGES)}. "
    "Default: two, or the last that EXPERIMENT has.",
)
@override
@task_options
def run(experiment: str, stage: str | None, override: str, data_root: str, artifact_root: str, **engine: Any) -> None:
    """Make an experiment, or one stage.

    EXPERIMENT is a name that `aoq list` shows, or a .toml file; changes may follow after @, as in demo@seed=1. Stages
    that are missing are made first. What is there is kept: a second run has nothing to do.

    Luigi runs the tasks, as `luigi --module tasks SecondRound --experiment EXPERIMENT` does, and the exit code is its
    own: 0 where all is made, 30 where a task failed. An interrupted run goes on where it was.
    """
    from aoq.tasks.stages import TASKS

    name, override = with_override(experiment, override)
    roots = {"data_root": data_root, "artifact_root": artifact_root}
    chain = plan(name, override=override, **{root: configured_path(root, folder) for root, folder in roots.items()})
    stage = (
        ROUNDS.get(stage, stage) if stage else "second_round" if "second_round" in chain.stages else [*chain.stages][-1]
    )
    chain.owner(stage)  # refuses a stage that the experiment lacks
    _make(TASKS[stage](experiment=name, override=override, **roots), **engine)
    _suggest_next(experiment, stage, chain)


@click.command()
@click.argument("experiment", type=EXPERIMENT)
@override
@task_options
def evaluate(experiment: str, override: str, data_root: str, artifact_root: str, **engine: Any) -> None:
    """Evaluate an experiment's student.

    The metrics are those of its second round, on the split that [evaluation] of EXPERIMENT names; for an ensemble,
    those of its members together. Stages that are missing are made first, as `aoq run` does.
    """
    from aoq.tasks import Evaluation

    name, override = with_override(experiment, override)
    _make(Evaluation(experiment=name, override=override, data_root=data_root, artifact_root=artifact_root), **engine)
    echo_next(typed("aoq", "results", experiment))


@click.command()
@click.argument("study", type=STUDY)
@task_options
def study(study: str, data_root: str, artifact_root: str, **engine: Any) -> None:
    """Run a study: arms, models, seeds.

    Every arm of STUDY is trained on every model with every seed, and evaluated; then the tables of it all are made.
    STUDY is a name that `aoq list studies` shows, or a .toml file.
    """
    from aoq.tasks import Ablation

    _make(Ablation(study=study, data_root=data_root, artifact_root=artifact_root), **engine)
    echo_next(typed("aoq", "results", "--study", study))


def _make(task: MakingTask, workers: int, **engine: Any) -> None:
    """Run the task and what it needs; exit with Luigi's code if anything failed."""
    import luigi

    set_engine(**{name: value for name, value in engine.items() if value is not None})
    ended = luigi.build([task], workers=workers, detailed_summary=True)
    if code := _exit_code(ended.status.name):
        sys.exit(code)
    task.link()
    echo(task.artifact.path)


def _exit_code(status: str) -> int:
    """The code of [retcode] in luigi.cfg that `luigi` would end with."""
    from luigi.retcodes import retcode

    codes: dict[str, int] = {
        "FAILED": retcode().task_failed,
        "SCHEDULING_FAILED": retcode().scheduling_error,
        "FAILED_AND_SCHEDULING_FAILED": max(retcode().task_failed, retcode().scheduling_error),
        "NOT_RUN": retcode().not_run,
        "MISSING_EXT": retcode().missing_data,
    }
    return codes.get(status, 0)


def _suggest_next(experiment: str, stage: str, chain: Chain) -> None:
    if stage == "first_round":
        echo_next(typed("aoq", "run", experiment, "--round", "hard_negatives"))
    elif stage in ("hard_negatives", "screen"):
        echo_next(typed("aoq", "inspect", experiment, "--image", "0"))
    elif stage in COMPARED:
        missing = [name for name in COMPARED if name in chain.stages and not chain[name].exists()]
        commands = [typed("aoq", "run", experiment, *COMPARED[name]) for name in missing]
        echo_next(*commands, typed("aoq", "results", experiment))
    elif stage == "evaluation":
        echo_next(typed("aoq", "results", experiment))
    elif "evaluation" in chain.stages:
        echo_next(typed("aoq", "run", experiment))
