"""Mining units as Ray tasks, here or on a cluster.

A unit is idempotent and its files appear whole or not at all, so Ray does again what a lost process or node was at.
Nothing but units, paths and numbers goes through Ray: every node maps the vectors itself.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from aoq.pipeline.digests import file_sha256
from aoq.pipeline.search.cluster.connection import connected, usable_nodes
from aoq.pipeline.search.cluster.job import POSITIVES, Job, VectorsFile, check_nodes, differing_versions, versions_here
from aoq.pipeline.search.problem import Problem
from aoq.pipeline.search.store import Folder, Store
from aoq.pipeline.search.threads import use_threads
from aoq.pipeline.search.units import Progress, Steps, Unit

RETRIES = 10
"""How often the process or node that does a unit may be lost."""
PATIENCE = 60.0
"""Seconds without a finished unit after which it is asked whether any node is left."""


def run_on_ray(
    steps: Steps,
    problem: Problem,
    store: Store,
    progress: Progress,
    *,
    address: str,
    cpus: int,
    fetched: Mapping[Path, str],
) -> None:
    """Do the units on a cluster, each with `cpus` threads and the problem's memory for itself.

    On a node run as many at a time as it has processors and memory for. A unit's own error ends the run; what was
    finished stays for the next one.
    """
    if not isinstance(store, Folder):
        raise ValueError("mining on Ray needs a folder that all nodes share; to search in memory, search in process.")
    with connected(address) as ray:
        job = write_job(problem, store, fetched)
        check_nodes(ray, job, cpus)
        task = ray.remote(num_cpus=cpus, memory=job.memory, max_retries=RETRIES)(do_unit)
        total, done = sum(map(len, steps)), 0
        for step in steps:
            waiting = [task.remote(unit, job, cpus) for unit in step]
            while waiting:
                finished, waiting = ray.wait(waiting, timeout=PATIENCE)
                if not finished:
                    usable_nodes(ray, cpus, job.memory)
                for unit in finished:
                    _raise_its_error(ray, unit)
                    done += 1
                    progress(done, total)


def write_job(problem: Problem, store: Folder, fetched: Mapping[Path, str]) -> Job:
    """The problem as files: its vectors are mapped ones, its positives are written into the work folder."""
    store = replace(store, path=store.path.absolute())
    temporary, positives = store.path / "positives.tmp", store.path / POSITIVES
    with temporary.open("wb") as file:
        np.save(file, problem.positives)
    os.replace(temporary, positives)
    images, captions = _file_of(problem.images, fetched), _file_of(problem.captions, fetched)
    shape = problem.h_captions, problem.h_images, problem.memory, problem.one_set
    return Job(images, captions, store, file_sha256(positives), *shape, versions_here())


def _file_of(vectors: np.ndarray, fetched: Mapping[Path, str]) -> VectorsFile:
    if not isinstance(vectors, np.memmap) or isinstance(vectors.base, np.memmap):
        raise ValueError("vectors for Ray must each be one whole memory-mapped .npy file, for all nodes to read.")
    path = Path(str(vectors.filename))
    return VectorsFile(path, fetched.get(path, ""), file_sha256(path))


def do_unit(unit: Unit[Problem], job: Job, cpus: int) -> None:
    """What a worker does."""
    use_threads(cpus)
    unit.do(*_open(job))


@lru_cache(maxsize=1)
def _open(job: Job) -> tuple[Problem, Store]:
    """Once a process; nodes that joined after the start were not checked."""
    if wrong := differing_versions(versions_here(), job.versions):
        raise ValueError(f"a node that joined {', '.join(wrong)}; install the same there, then run again.")
    return job.open(), job.store


def _raise_its_error(ray: Any, unit: Any) -> None:
    try:
        ray.get(unit)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
    except ray.exceptions.RayError as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise OSError(
            f"a unit was lost {RETRIES + 1} times with the process or node that did it ({reason}); "
            "finished units are kept: give units more room (mining memory, threads), then run again."
        ) from None
