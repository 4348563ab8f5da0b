"""Units of work as Ray tasks, here or on a cluster.

A unit is idempotent and its files appear whole or not at all, so Ray repeats the units of a lost process or node.
Only units, paths and numbers go through Ray: every node reads its own input.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch

from aoq.pipeline.search.cluster.connection import Room, connected, usable_nodes
from aoq.pipeline.search.cluster.dispatch import LOOK, Feed, Piece, Slot, dispatch
from aoq.pipeline.search.cluster.job import Job, Opened, check_nodes
from aoq.pipeline.search.rows import RowStep
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

    A node runs as many at a time as it has processors and memory for (`dispatch`). A unit's own error ends the run;
    what was finished stays for the next one.
    """
    if not isinstance(store, Folder):
        raise ValueError("Ray needs a folder that all nodes share; what stays in memory is done in process.")
    with connected(address) as ray:
        job = ship(opened, replace(store, path=store.path.absolute()))
        room = Room(cpus, job.memory, job.gpus)
        check_nodes(ray, job, room)
        total, done = sum(map(len, steps)), 0
        for step in steps:
            feed, finished = Feed(step, store), 0

            def report(rows: int, whole: int = feed.rows, length: int = len(step), before: int = done) -> None:
                nonlocal finished
                finished += rows
                progress(before + length * finished // whole, total)

            dispatch(feed, RayCluster(ray, job, room, shares_gpus=isinstance(step, RowStep)), report)
            done += len(step)


class RayCluster:
    """The nodes of a cluster, as slots of one room each."""

    def __init__(self, ray: Any, job: Job[Any], room: Room, *, shares_gpus: bool) -> None:
        """Divide nodes into slots; with `shares_gpus` slots have a GPU each while a node has any, and the rest none."""
        self._ray, self._job, self._room, self._shares_gpus = ray, job, room, shares_gpus
        # With a GPU, Ray would otherwise start a process for each unit, and each would open the job again.
        takes = {"num_cpus": room.cpus, "memory": room.memory, "max_retries": RETRIES, "max_calls": 0}
        self._task = ray.remote(**takes)(do_unit)

    def slots(self) -> list[Slot]:
        found = []
        for node in self._ray.nodes():
            if node["Alive"]:
                count = self._room.times_on(node["Resources"])
                gpus = int(node["Resources"].get("GPU", 0)) if self._shares_gpus else 0
                found += [Slot(node["NodeID"], number < gpus) for number in range(count)]
        return found

    def start(self, piece: Piece[Any], slot: Slot) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        where = NodeAffinitySchedulingStrategy(slot.node, soft=True)
        task = self._task.options(num_gpus=int(slot.gpu) or self._room.gpus, scheduling_strategy=where)
        return task.remote(piece.cut, self._job, self._room.cpus, slot.gpu)

    def wait(self, handles: Sequence[Any], seconds: float | None) -> Sequence[Any]:
        if not handles:
            usable_nodes(self._ray, self._room)
            time.sleep(LOOK)
            return []
        finished, _ = self._ray.wait(list(handles), timeout=PATIENCE if seconds is None else seconds)
        if not finished:
            usable_nodes(self._ray, self._room)
        return finished

    def seconds(self, handle: Any) -> float:
        return _result(self._ray, handle)

    def stop(self, handles: Sequence[Any]) -> None:
        for handle in handles:
            self._ray.cancel(handle, force=True)
        if handles:  # a unit that is still written would be in the way of who clears the folder
            self._ray.wait(list(handles), num_returns=len(handles), timeout=ENDING)


def do_unit(cut: Callable[[str], Unit[Opened]], job: Job[Opened], cpus: int, gpu: bool) -> float:
    """Do one unit on a worker, on a GPU if it was given one that torch can use; return the seconds it took."""
    use_threads(cpus)
    opened, began = _open(job), time.monotonic()
    cut("cuda" if gpu and torch.cuda.is_available() else "cpu").do(opened, job.store)
    return time.monotonic() - began


@lru_cache(maxsize=1)
def _open(job: Job[Any]) -> Any:
    """Open the job, once per process; nodes that joined after the start were not checked before."""
    if wrong := job.differing_here():
        raise ValueError(f"a node that joined {', '.join(wrong)}; install the same there, then run again.")
    return job.open()


def _result(ray: Any, unit: Any) -> float:
    try:
        return float(ray.get(unit))
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
    except ray.exceptions.RayError as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise OSError(
            f"a unit was lost {RETRIES + 1} times with the process or node that did it ({reason}); "
            "finished units are kept: give units more room (threads; of mining, its memory), then run again."
        ) from None
