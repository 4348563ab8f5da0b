"""`aoq run`, `study` and `evaluate`: Luigi's tasks, with its exit codes; and `aoq list`: their arguments."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import click
import luigi
from luigi.retcodes import retcode

from aoq.pipeline.cli import options
from aoq.pipeline.cli.options import override, with_default, with_override
from aoq.pipeline.cli.output import SHORT_ROUNDS, command_line, echo, echo_json, echo_next, say, show_rows, to_make
from aoq.pipeline.config.experiment import Experiment
from aoq.pipeline.config.load import load_experiment, names_in, split_member
from aoq.pipeline.config.study import STUDIES, load_study
from aoq.pipeline.settings import configured_path, set_engine
from aoq.pipeline.stages.chain import Chain
from aoq.pipeline.stages.plan import plan
from aoq.tasks import Ablation, Evaluation
from aoq.tasks.base import MakingTask
from aoq.tasks.stages import TASKS

task_options = options.together(
    options.roots_as_typed,
    with_default("--workers", default=1, type=options.POSITIVE, help="Tasks at a time."),
    click.option("--threads", type=click.IntRange(min=0), help="Threads; 0: cores / workers; default: luigi.cfg."),
    click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), help="Device; default: luigi.cfg."),
)


@click.command("run")
@click.argument("experiment", type=options.EXPERIMENT)
@click.option(
    "--round",
    "stage",
    type=options.ROUND,
    metavar="ROUND",
    help=f"one (the teacher), two (the student), control, or a stage: {', '.join(options.STAGES)}. "
    "Default: two, or EXPERIMENT's last stage.",
)
@override
@task_options
def run_command(
    experiment: str, stage: str | None, override: str, data_root: str, artifact_root: str, **engine: Any
) -> None:
    """Make an experiment, or one stage.

    EXPERIMENT is a name that `aoq list` shows, or a .toml file; changes may follow after @, as in demo@seed=1. Missing
    stages are made first. Existing artefacts are kept, so a second run has nothing to do.

    Luigi runs the tasks, as `luigi --module tasks SecondRound --experiment EXPERIMENT` does. The exit code is Luigi's:
    0 if everything was made, 30 if a task failed. An interrupted run resumes.
    """
    name, override = with_override(experiment, override)
    roots = {"data_root": data_root, "artifact_root": artifact_root}
    chain = plan(name, override=override, **{root: configured_path(root, folder) for root, folder in roots.items()})
    stage = stage or ("two" if "second_round" in chain.stages else [*chain.stages][-1])
    stage = SHORT_ROUNDS.get(stage, stage)
    chain.owner(stage)  # refuses a stage that the experiment lacks
    _run(TASKS[stage](experiment=name, override=override, **roots), **engine)
    _suggest_next(experiment, stage, chain)


@click.command("evaluate")
@click.argument("experiment", type=options.EXPERIMENT)
@override
@task_options
def evaluate_command(experiment: str, override: str, data_root: str, artifact_root: str, **engine: Any) -> None:
    """Evaluate an experiment's student.

    Compute the metrics of its second round, or of an ensemble's members together, on the split that [evaluation] of
    EXPERIMENT names. Missing stages are made first, as by `aoq run`.
    """
    name, override = with_override(experiment, override)
    _run(Evaluation(experiment=name, override=override, data_root=data_root, artifact_root=artifact_root), **engine)
    echo_next(command_line("aoq", "results", experiment))


@click.command("study")
@click.argument("study", type=options.STUDY)
@task_options
def study_command(study: str, data_root: str, artifact_root: str, **engine: Any) -> None:
    """Run a study: arms, models, seeds.

    Train and evaluate every arm of STUDY on every model with every seed, then make the study's tables. STUDY is a name
    that `aoq list studies` shows, or a .toml file.
    """
    _run(Ablation(study=study, data_root=data_root, artifact_root=artifact_root), **engine)
    echo_next(command_line("aoq", "results", "--study", study))


def _run(task: MakingTask, workers: int, **engine: Any) -> None:
    set_engine(**{name: value for name, value in engine.items() if value is not None})
    luigi.configuration.get_config().set("core", "workers", str(workers))  # where tasks read it
    if code := _exit_code(luigi.build([task], detailed_summary=True).status.name):
        sys.exit(code)
    task.link()
    echo(task.artifact.path)


def _exit_code(status: str) -> int:
    """Return the exit code of `luigi`, from [retcode] in luigi.cfg."""
    codes = retcode()
    by_status: dict[str, int] = {
        "FAILED": codes.task_failed,
        "SCHEDULING_FAILED": codes.scheduling_error,
        "FAILED_AND_SCHEDULING_FAILED": max(codes.task_failed, codes.scheduling_error),
        "NOT_RUN": codes.not_run,
        "MISSING_EXT": codes.missing_data,
    }
    return by_status.get(status, 0)


def _suggest_next(experiment: str, stage: str, chain: Chain) -> None:
    results = command_line("aoq", "results", experiment)
    if stage == "first_round":
        echo_next(command_line("aoq", "run", experiment, "--round", "hard_negatives"))
    elif stage in ("hard_negatives", "screen"):
        echo_next(command_line("aoq", "inspect", chain.reference, "--image", "0", override=False))
    elif stage in ("second_round", "control"):  # which `aoq results` compares
        missing = [one for one in ("second_round", "control") if one in chain.stages and not chain[one].exists()]
        echo_next(*(to_make(one, experiment) for one in missing), results)
    elif stage == "evaluation":
        echo_next(results)
    elif "evaluation" in chain.stages:
        echo_next(command_line("aoq", "run", experiment))


@click.command("list")
@click.argument("kind", required=False, type=click.Choice(["experiments", "studies", "stages", "searches"]))
@options.as_json
def list_command(kind: str | None, as_json: bool) -> None:
    """List experiments, studies, stages.

    List the experiments and studies in ./configs and those shipped with aoq, and the stages; or one KIND of these.
    `aoq list searches` describes the searches that `aoq mine --search` and [mining] take.
    """
    listings = {"experiments": _experiments, "studies": _studies, "stages": _stages, "searches": _searches}
    lists = {name: list(listings[name]()) for name in ([kind] if kind else ["experiments", "studies", "stages"])}
    if as_json:
        echo_json(lists)
        return
    for name, rows in lists.items():
        show_rows(tuple(rows[0]) if rows else (name,), [tuple(row.values()) for row in rows])
        say()
    if kind is None:
        echo_next("aoq run EXPERIMENT", "aoq study STUDY")


def _experiments() -> Iterator[dict[str, str]]:
    for name in names_in():
        data, model = "", ""
        try:
            experiment = load_experiment(name)
        except (ValueError, OSError) as error:  # list the others despite a broken file
            table = str(error)
        else:
            if isinstance(experiment, Experiment):
                dataset, model = experiment.dataset, experiment.model.name
                data = "generated" if dataset.demo else dataset.folder or str(dataset.source and dataset.source.path)
                teacher = split_member(experiment.teacher)[0] if experiment.teacher else ""
                has_table = experiment.weights is not None or experiment.uses_table
                table = (teacher or ("its own" if experiment.mining else "none")) if has_table else "none"
            else:
                table = type(experiment).__name__.lower()
        yield {"experiment": name, "data": data, "model": model, "table": table}


def _studies() -> Iterator[dict[str, str]]:
    for name in names_in(STUDIES):
        try:
            study = load_study(name)
        except (ValueError, OSError) as error:
            yield {"study": name, "size": "", "title": str(error)}
        else:
            sizes = f"{len(study.arms)} arms, {len(study.models)} models, {len(study.seeds)} seeds"
            yield {"study": name, "size": sizes, "title": study.title}


def _stages() -> Iterator[dict[str, str]]:
    for stage, task in TASKS.items():
        about = (task.__doc__ or "").strip().splitlines()[0]
        yield {"stage": stage, "what it is": about, "Luigi's task": task.__name__}


def _searches() -> Iterator[dict[str, str]]:
    from aoq.pipeline.search.backends import BACKENDS

    yield {"search": "auto", "about": "the fastest exact search on this machine"}
    for name, backend in BACKENDS.items():
        yield {"search": name, "about": backend.about}
