"""Units of work as tasks of a Ray cluster.

A unit is idempotent and its files appear complete or not at all, so Ray can repeat the units of a lost process or node.
Only units, paths and numbers go through Ray; every node reads its own input.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Generic, TypeVar
from uuid import uuid4

import numpy as np

from aoq.pipeline.artifact import differences
from aoq.pipeline.build import code_versions
from aoq.pipeline.engine import Engine
from aoq.pipeline.extras import import_extra
from aoq.pipeline.files import known_sha256
from aoq.pipeline.reading import open_array
from aoq.pipeline.search.problem import Problem
from aoq.pipeline.search.units import Folder, Progress, Runner, Steps, Store, Unit, run_in_process
from aoq.pipeline.vectors import fetch

DEFAULTS = {
    "RAY_USAGE_STATS_ENABLED": "0",  # send no usage statistics
    "RAY_worker_niceness": "0",  # a cluster started here exists only to run units
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # else every start warns of a future change
}
HERE = {"address": "local", "object_store_memory": 100_000_000, "include_dashboard": False}
RETRIES = 10
"""Number of times that a unit's process or node may be lost."""
_ANSWER, _PATIENCE, _ENDING = 600.0, 60.0, 10.0
"""Seconds for a node to check its input, between checks that any node is left, and for cancelled units to end."""

Opened = TypeVar("Opened")


@dataclass(frozen=True)
class Job(Generic[Opened]):
    """Work that is sent to nodes; its units write their tables into a shared folder."""

    store: Folder
    memory: int
    """Bytes that a unit may use."""
    device: str
    open: Callable[[], Opened] = field(compare=False)
    """Load the units' input; called once per process."""
    lacking: Callable[[], list[str]] = field(compare=False)
    """List the requirements of the job that a node lacks, one phrase each."""
    versions: Mapping[str, str] = field(default_factory=code_versions, compare=False)


Ship = Callable[[Opened, Folder], Job[Opened]]


def ship_problem(problem: Problem, store: Folder, *, fetched: Mapping[Path, str] | None = None) -> Job[Problem]:
    """Make the job of mapped vectors, in files that all nodes see or can fetch from the addresses in `fetched`."""
    sides: list[Any] = [problem.images, problem.captions]
    if not all(isinstance(side, np.memmap) and not isinstance(side.base, np.memmap) for side in sides):
        raise ValueError("vectors for Ray must each be one whole memory-mapped .npy file that all nodes can read.")
    files = {(path := Path(side.filename)): (fetched or {}).get(path, "") for side in sides}
    names = {one.name for one in fields(problem) if one.init} - {"images", "captions"}
    opened = partial(_open_problem, files, {name: getattr(problem, name) for name in sorted(names)})
    return Job(store, problem.memory, problem.device, opened, partial(_other_vectors, opened, problem.sha256))


def _open_problem(files: Mapping[Path, str], options: Mapping[str, Any]) -> Problem:
    paths = [_fetched(path, address) if address else path for path, address in files.items()]
    vectors = [open_array(path, "c") for path in paths]
    return Problem(vectors[0], vectors[-1], **options)


def _fetched(path: Path, address: str) -> Path:
    """Return a copy, which is named by its hash; fetch it if this node has none."""
    if path.exists() and known_sha256(path) == path.stem:
        return path
    return fetch(address, path.parent)


def _other_vectors(opened: Callable[[], Problem], sha256: str) -> list[str]:
    try:
        return [] if opened().sha256 == sha256 else ["reads different vectors than this machine"]
    except (OSError, ValueError) as error:
        return [f"cannot read the vectors ({error})"]


def load_ray() -> Any:
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    return import_extra("ray", "ray", "backend = ray")


@contextmanager
def connected(address: str) -> Iterator[Any]:
    """Connect Ray to the cluster at `address`: "" starts one here, "auto" finds the one this machine belongs to.

    If the process is already connected, that connection is used and left open.
    """
    ray = load_ray()
    if ray.is_initialized():
        yield ray
        return
    options = {"address": address} if address else {**HERE, "num_cpus": len(os.sched_getaffinity(0))}
    try:
        if address not in ("", "auto"):  # Ray itself would retry for half a minute
            host, _, port = address.rpartition(":")
            socket.create_connection((host, int(port)), timeout=5).close()
        ray.init(**options, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, RuntimeError, ValueError, AssertionError) as error:
        raise ConnectionError(
            f"there is no usable Ray cluster at {address or 'this machine'!r} ({' '.join(str(error).split())}); give "
            'HOST:PORT, "auto" for the one this machine belongs to, or "" to use only this machine. `ray start --head` '
            "starts one (port 6379); run on one of its nodes, and set RAY_AUTH_MODE=token if it asks for a token."
        ) from None
    try:
        yield ray
    finally:
        ray.shutdown()


def required_resources(ray: Any, device: str, cpus: int, memory: int = 0, count: int = 1) -> dict[str, int]:
    """Return what each of `count` processes takes, with `auto` a GPU if any node has one; refuse a small cluster."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    gpu = any(node.get("GPU") for node in nodes) if device == "auto" else device.startswith("cuda")
    takes = {name: amount for name, amount in (("CPU", cpus), ("GPU", int(gpu)), ("memory", memory)) if amount}
    if (most := sum(_count_fitting(takes, node) for node in nodes)) < count:
        raise ValueError(
            f"the cluster has room for {most} of {count} processes of {_describe(takes)} each; its {len(nodes)} nodes "
            f"have {'; '.join(map(_describe, nodes)) or 'nothing'}. Start more nodes, or lower [engine] processes, "
            f"threads or mining_memory_mb{', or choose device cpu' * gpu}."
        )
    return takes


def _count_fitting(takes: Mapping[str, int], node: Mapping[str, Any]) -> int:
    return int(min(node.get(name, 0) // amount for name, amount in takes.items()))


def _describe(resources: Mapping[str, Any]) -> str:
    cpus, gpus, memory = (resources.get(name, 0) for name in ("CPU", "GPU", "memory"))
    return f"{cpus:.0f} CPUs, {gpus:.0f} GPUs and {memory / 1e6:.0f} MB"


def node_name(node: Mapping[str, Any]) -> str:
    return f"{node['NodeManagerHostname']} ({node['NodeID'][:8]})"


def check_nodes(ray: Any, takes: Mapping[str, int], folder: Path, lacking: Callable[[], list[str]] = list) -> None:
    """Raise if a node with room for a process has other versions, does not share the folder, or lacks something."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    task, answers, unfit = ray.remote(num_cpus=0, num_gpus=takes.get("GPU", 0), max_retries=0)(problems_here), {}, []
    with TemporaryDirectory(prefix=".seen-by-nodes-", dir=folder) as seen:
        for node in ray.nodes():
            if node["Alive"] and _count_fitting(takes, node["Resources"]):
                there = task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False))
                answers[node_name(node)] = there.remote(code_versions(), Path(seen), lacking)
        for name, answer in answers.items():
            try:
                problems = ray.get(answer, timeout=_ANSWER)
            except ray.exceptions.RayError as error:  # or no answer in time
                problems = [f"cannot run aoq ({str(error).strip().splitlines()[-1]})"]
            unfit += [f"{name} {'; it '.join(problems)}"] if problems else []
    if unfit:
        raise ValueError(
            f"{len(unfit)} of {len(answers)} nodes cannot work on this: node {'. Node '.join(unfit)}. Repair or stop "
            "these nodes; all need the same environment and a shared folder."
        )


def problems_here(versions: Mapping[str, str], seen: Path, lacking: Callable[[], list[str]]) -> list[str]:
    """List the reasons why this node cannot work, one phrase each; `seen` lies in the work folder."""
    problems = differing_here(versions)
    try:
        (seen / uuid4().hex).touch()
    except OSError as error:
        problems.append(f"cannot write in {seen.parent} ({error.strerror}): all nodes must share it, at one path")
    return problems + lacking()


def differing_here(wanted: Mapping[str, str]) -> list[str]:
    return [f"has {name} {ours}, not {theirs}" for name, (ours, theirs) in differences(code_versions(), wanted).items()]


def run_on_ray(
    steps: Steps[Opened], opened: Opened, store: Store, progress: Progress, *, ship: Ship[Opened], engine: Engine
) -> None:
    """Run the units on a cluster, each with the engine's threads and the job's memory. A unit's error ends the run."""
    assert isinstance(store, Folder)  # shared by all nodes
    with connected(engine.ray_address) as ray:
        job, cpus = ship(opened, replace(store, path=store.path.absolute())), engine.threads or 1
        takes = required_resources(ray, job.device, cpus, job.memory)
        check_nodes(ray, takes, job.store.path, job.lacking)
        # Without max_calls, Ray would start a process for each unit on a GPU, and each would open the job again.
        options = {"num_cpus": cpus, "num_gpus": takes.get("GPU", 0), "memory": job.memory, "max_calls": 0}
        task, shipped = ray.remote(**options, max_retries=RETRIES)(do_unit), ray.put(job)
        total, done = sum(map(len, steps)), 0
        for step in steps:
            left = [task.remote(unit, shipped, cpus) for unit in step]
            try:
                while left:
                    finished, left = ray.wait(left, timeout=_PATIENCE)
                    for unit in finished:
                        ray.get(unit)
                        progress(done := done + 1, total)
                    if not finished:
                        required_resources(ray, job.device, cpus, job.memory)
            except ray.exceptions.RayTaskError as error:
                raise error.cause from None
            except ray.exceptions.RayError as error:
                raise OSError(
                    f"a unit was lost {RETRIES + 1} times with its process or node ({str(error).splitlines()[0]}); "
                    "give units more threads (or mining more memory), and run again: finished units are kept."
                ) from None
            finally:
                for unit in left:
                    ray.cancel(unit, force=True)
                if left:  # a unit that still writes would disturb the clearing of the folder
                    ray.wait(left, num_returns=len(left), timeout=_ENDING)


def do_unit(unit: Unit[Opened], job: Job[Opened], cpus: int) -> None:
    import torch

    torch.set_num_threads(cpus)
    unit.do(_open_job(job), job.store)


@lru_cache(maxsize=1)
def _open_job(job: Job[Any]) -> Any:
    """Open the job, once per process; nodes that joined after the start have not been checked yet."""
    if wrong := differing_here(job.versions):
        raise ValueError(f"a node that joined late {', '.join(wrong)}; install the same there, then run again.")
    return job.open()


def choose_runner(engine: Engine, ship: Ship[Opened]) -> Runner[Opened]:
    """Choose the runner of the units; `ship` turns their input into a job for the nodes of a cluster."""
    if engine.backend == "inprocess":
        return run_in_process
    load_ray()  # if Ray is missing, fail before anything is read
    return partial(run_on_ray, ship=ship, engine=engine)
