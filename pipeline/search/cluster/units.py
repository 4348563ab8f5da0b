"""Units of work as Ray tasks, here or on a cluster.

A unit is idempotent and its files appear whole or not at all, so Ray repeats the units of a lost process or node.
Only units, paths and numbers go through Ray: every node reads its own input.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

from aoq.pipeline.search.cluster.connection import Room, connected, usable_nodes
from aoq.pipeline.search.cluster.job import Job, Opened, check_nodes
from aoq.pipeline.search.store import Folder, Store
from aoq.pipeline.search.threads import use_threads
from aoq.pipeline.search.units import Progress, Steps, Unit

RETRIES = 10
"""Number of times that a unit's process or node may be lost."""
ENDING = 10.0
"""Seconds to wait for the processes of units that were given up; on a lost node they may not end."""
PATIENCE = 60.0
"""Seconds without a finished unit before checking whether any node is left."""


def run_on_ray(
    steps: Steps[Opened],
    opened: Opened,
    store: Store,
    progress: Progress,
    *,
    ship: Callable[[Opened, Folder], Job[Opened]],
    address: str,
    cpus: int,
) -> None:
    """Do the units on a cluster, each with `cpus` threads and the job's memory for itself.

    A unit's own error ends the run; what was finished stays for the next one.
    """
    if not isinstance(store, Folder):
        raise ValueError("Ray needs a folder that all nodes share; what stays in memory is done in process.")
    with connected(address) as ray:
        job = ship(opened, replace(store, path=store.path.absolute()))
        room = Room(cpus, job.memory, job.gpus)
        check_nodes(ray, job, room)
        # With a GPU, Ray would otherwise start a process for each unit, and each would open the job again.
        takes = {"num_cpus": cpus, "num_gpus": job.gpus, "memory": job.memory, "max_retries": RETRIES, "max_calls": 0}
        task, shipped = ray.remote(**takes)(do_unit), ray.put(job)
        total, done = sum(map(len, steps)), 0
        for step in steps:
            left = [task.remote(unit, shipped, cpus) for unit in step]
            try:
                while left:
                    finished, left = ray.wait(left, timeout=PATIENCE)
                    for unit in finished:
                        _require_done(ray, unit)
                        done += 1
                        progress(done, total)
                    if not finished:
                        usable_nodes(ray, room)
            finally:
                for unit in left:
                    ray.cancel(unit, force=True)
                if left:  # a unit that is still written would be in the way of who clears the folder
                    ray.wait(left, num_returns=len(left), timeout=ENDING)


def do_unit(unit: Unit[Opened], job: Job[Opened], cpus: int) -> None:
    """Do one unit on a worker."""
    use_threads(cpus)
    unit.do(_open(job), job.store)


@lru_cache(maxsize=1)
def _open(job: Job[Any]) -> Any:
    """Open the job, once per process; nodes that joined after the start were not checked before."""
    if wrong := job.differing_here():
        raise ValueError(f"a node that joined {', '.join(wrong)}; install the same there, then run again.")
    return job.open()


def _require_done(ray: Any, unit: Any) -> None:
    try:
        ray.get(unit)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
    except ray.exceptions.RayError as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise OSError(
            f"a unit was lost {RETRIES + 1} times with the process or node that did it ({reason}); "
            "finished units are kept: give units more room (threads; of mining, its memory), then run again."
        ) from None
