"""Processes that train one model, placed by Ray: each in a bundle of one placement group, on any nodes of a cluster.

All of them are the cluster's, the leader too; this process waits for it, and logs what it says.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from aoq.pipeline.engine import Engine
from aoq.pipeline.produce.joining import RESUMED, TIMEOUT, TOLD, is_of_network, joined
from aoq.pipeline.search.cluster.connection import Room, connected, load_ray, node_name
from aoq.pipeline.search.cluster.job import (
    Versions,
    answer_of,
    differing_versions,
    refuse_unfit,
    token_in,
    unshared,
    versions_here,
)

T = TypeVar("T")
PLACING = 300.0
"""Seconds to wait for room that others take."""
ENDING = 10.0
"""Seconds within which all processes must end after one has failed, or after the leader."""
LOOK = 1.0
"""Seconds after which the leader is asked for what it logged."""


class Member:
    """A process of the gang, as an actor of Ray with two threads: one trains, the other answers."""

    def __init__(self) -> None:
        self._outbox = _Outbox(logging.INFO)

    def problems(self, versions: Versions, folder: Path, token: str) -> list[str]:
        """List what keeps this node from taking part."""
        return differing_versions(versions_here(), versions) + unshared(folder, token)

    def serve(self, count: int) -> tuple[str, int]:
        """Keep the store at which all meet; return its address and port."""
        host = load_ray().util.get_node_ip_address()
        self._store = TCPStore(host, 0, count, is_master=True, wait_for_workers=False, timeout=TIMEOUT)
        return host, self._store.port

    def take_part(self, rank: int, meeting: tuple[str, int], engine: Engine, part: Callable[..., T], given: Any) -> T:
        """Join the others and do this process's part of the work."""
        if rank == 0:
            ours = logging.getLogger("aoq")
            ours.setLevel(logging.INFO)
            ours.addHandler(self._outbox)
        host, port = meeting
        store = TCPStore(host, port, engine.processes, is_master=False, timeout=TIMEOUT)
        device = replace(engine, processes=1).torch_device(0)  # of GPUs it sees its bundle's alone
        with joined(store, rank, engine.processes, device) as processes:
            return part(processes, engine, *given)

    def logged(self) -> list[tuple[str, int, str]]:
        """Take what was logged since the last call: logger, level, message."""
        return self._outbox.take()


class _Outbox(logging.Handler):
    def __init__(self, level: int) -> None:
        super().__init__(level)
        self._lines: list[tuple[str, int, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append((record.name, record.levelno, record.getMessage()))

    def take(self) -> list[tuple[str, int, str]]:
        self.acquire()  # as `handle` does: another thread logs meanwhile
        try:
            taken, self._lines = self._lines, []
        finally:
            self.release()
        return taken


def run_ganged(engine: Engine, folder: Path, part: Callable[..., T], *given: Any) -> tuple[T, list[str]]:
    """Do `part(processes, engine, *given)` in each of `engine.processes` processes of a cluster.

    Return what the leader's returns, and the node of each. `folder` must be one that all nodes share.

    Raises:
        ValueError: if the cluster has too little room, or a node other code.
        TimeoutError: if others take the room.
        ChildProcessError: if a process was lost, or failed; the leader's own error is raised as it is.
    """
    with connected(engine.ray_address) as ray:
        room = room_of_each(ray.nodes(), engine)
        with _placed(ray, room, engine.processes) as (members, nodes):
            with token_in(folder) as token:
                asked = [member.problems.remote(versions_here(), folder, token) for member in members]
                refuse_unfit({node: answer_of(ray, one) for node, one in zip(nodes, asked, strict=True)})
            automatic = "cuda" if room.gpus else "cpu"
            device = automatic if room.gpus or engine.device == "auto" else engine.device
            told = replace(engine, backend="inprocess", device=device, threads=room.cpus)
            meeting = members[0].serve.remote(engine.processes)
            works = [one.take_part.remote(rank, meeting, told, part, given) for rank, one in enumerate(members)]
            return _of_leader(ray, members[0], works, nodes), nodes


def room_of_each(nodes: Sequence[Mapping[str, Any]], engine: Engine) -> Room:
    """Return what each process takes: a GPU if the cluster has any and the device is not `cpu`, and its threads.

    >>> node = {"Alive": True, "Resources": {"CPU": 8.0, "GPU": 2.0}}
    >>> room_of_each([node], Engine(processes=2))
    Room(cpus=1, memory=0, gpus=1)
    >>> room_of_each([node], Engine(processes=9, device="cpu"))
    Traceback (most recent call last):
    ValueError: 9 processes are to train, each with 1 CPUs, and the cluster has room for 8 of them: ...
    """
    alive = [node["Resources"] for node in nodes if node["Alive"]]
    some = any(each.get("GPU", 0) for each in alive)
    gpus = int(some if engine.device == "auto" else engine.device.startswith("cuda"))
    room = Room(engine.threads or 1, 0, gpus)
    if (most := sum(room.times_on(each) for each in alive)) < engine.processes:
        there = "; ".join(f"{each.get('CPU', 0):.0f} CPUs and {each.get('GPU', 0):.0f} GPUs" for each in alive)
        raise ValueError(
            f"{engine.processes} processes are to train, each with {room.cpus} CPUs{' and a GPU' if gpus else ''}, and "
            f"the cluster has room for {most} of them: {len(alive)} nodes with {there or 'nothing'}. Start more nodes, "
            f"or lower [engine] processes or threads{', or set device = cpu' if gpus else ''}."
        )
    return room


@contextmanager
def _placed(ray: Any, room: Room, count: int) -> Iterator[tuple[list[Any], list[str]]]:
    """Yield the members, one a bundle, and the names of their nodes; they end with the block."""
    from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    takes = {"CPU": room.cpus} | ({"GPU": room.gpus} if room.gpus else {})
    group, members = placement_group([takes] * count), []
    try:
        if not group.wait(PLACING):
            raise TimeoutError(
                f"the cluster has room for {count} processes of {room.cpus} CPUs{' and a GPU' if room.gpus else ''}, "
                f"but other work took it for {PLACING:.0f} seconds; run again when it is free."
            )
        actor = ray.remote(num_cpus=room.cpus, num_gpus=room.gpus, max_concurrency=2)(Member)
        for rank in range(count):
            where = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=rank)
            members.append(actor.options(scheduling_strategy=where).remote())
        names = {node["NodeID"]: node_name(node) for node in ray.nodes()}
        on = placement_group_table(group)["bundles_to_node_id"]
        yield members, [names.get(on[rank], on[rank]) for rank in range(count)]
    finally:
        for member in members:
            ray.kill(member)
        remove_placement_group(group)


def _of_leader(ray: Any, leader: Any, works: Sequence[Any], nodes: Sequence[str]) -> Any:
    """Wait until the leader is done; where a process failed, raise why."""
    failures: dict[int, Any] = {}
    left, ends = {work: rank for rank, work in enumerate(works)}, float("inf")
    while left and time.monotonic() < ends:
        ended, _ = ray.wait(list(left), timeout=LOOK)
        with suppress(ray.exceptions.RayError):
            for name, level, message in ray.get(leader.logged.remote(), timeout=ENDING):
                logging.getLogger(name).log(level, "%s", message)
        for work in ended:
            rank = left.pop(work)
            try:
                ray.get(work)
            except ray.exceptions.RayError as error:
                failures[rank] = error
            if rank == 0 or failures:
                ends = min(ends, time.monotonic() + ENDING)
    if works[0] in left or 0 in failures:
        _raise_why(ray, failures, nodes)
    return ray.get(works[0])


def _raise_why(ray: Any, failures: Mapping[int, Any], nodes: Sequence[str]) -> NoReturn:
    """Raise the reason of these failures, by rank: where one process is lost or fails, the others fail too."""
    for rank, error in failures.items():
        if not isinstance(error, ray.exceptions.RayTaskError):
            raise ChildProcessError(
                f"process {rank} of this training, on {nodes[rank]}, was killed, or lost with its node. {RESUMED}"
            ) from error
    for rank, error in sorted(failures.items()):
        if is_of_network(cause := error.cause):
            continue
        if rank == 0:
            raise cause from failures[0]
        said = cause if isinstance(cause, TOLD) else failures[rank]
        raise ChildProcessError(f"process {rank} of this training, on {nodes[rank]}, failed: {said} {RESUMED}")
    raise ChildProcessError(f"another process of this training ended. {RESUMED}")
