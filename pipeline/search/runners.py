"""Who does the units of a mining job: this process, or the workers of a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from aoq.pipeline.engine import Engine
from aoq.pipeline.search.problem import Problem
from aoq.pipeline.search.units import Steps

Progress = Callable[[int, int], None]
Runner = Callable[[Steps, Problem, Path, Progress], None]


def run_in_process(steps: Steps, problem: Problem, work: Path, progress: Progress) -> None:
    """One unit after the other, each with all threads."""
    total, done = sum(map(len, steps)), 0
    for step in steps:
        for unit in step:
            unit.do(problem, work)
            done += 1
            progress(done, total)


def choose_runner(engine: Engine, fetched: Mapping[Path, str] | None = None) -> Runner:
    """`fetched` says of files in the cache from which address every node gets its own copy."""
    if engine.backend == "inprocess":
        return run_in_process
    from aoq.pipeline.search.cluster.connection import load_ray
    from aoq.pipeline.search.cluster.units import run_on_ray

    load_ray()  # without it a run ends here, before anything is read
    return partial(run_on_ray, address=engine.ray_address, cpus=engine.threads or 1, fetched=fetched or {})
