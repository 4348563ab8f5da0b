"""Connect to a Ray cluster, or start one on this machine for the length of a run."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from aoq.pipeline.extras import import_extra

logger = logging.getLogger(__name__)

DEFAULTS = {
    "RAY_USAGE_STATS_ENABLED": "0",  # send no usage statistics
    "RAY_worker_niceness": "0",  # of a cluster started here: it exists to run units
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # without it, every start warns of a coming change
}
STORE_BYTES = 100_000_000
"""Object store of a cluster started here; it holds units and their arguments."""
SECONDS = 5.0


class Room(NamedTuple):
    """Resources that a unit takes of a node; memory in bytes."""

    cpus: int
    memory: int
    gpus: int = 0

    def __str__(self) -> str:
        return f"{self.cpus} threads{', a GPU' if self.gpus else ''} and {self.memory / 1e6:.0f} MB"

    def is_on(self, resources: Mapping[str, float]) -> bool:
        """Return whether a node with these resources has this room."""
        return self.times_on(resources) > 0

    def times_on(self, resources: Mapping[str, float]) -> int:
        """Number of units that a node with these resources has room for at a time."""
        there = (resources.get(name, 0) for name in ("CPU", "memory", "GPU"))
        return int(min(has // wanted for has, wanted in zip(there, self, strict=True) if wanted))


def load_ray() -> Any:
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    return import_extra("ray", "ray", "[engine] backend = ray")


@contextmanager
def connected(address: str) -> Iterator[Any]:
    """Connect Ray to the cluster at `address`: "" starts one, "auto" finds the one this machine is a node of.

    An existing connection of the process is used and left open.
    """
    ray = load_ray()
    if ray.is_initialized():
        yield ray
        return
    if address not in ("", "auto"):
        _require_listener(address)
    own = {"num_cpus": len(os.sched_getaffinity(0)), "object_store_memory": STORE_BYTES, "include_dashboard": False}
    given: dict[str, Any] = {"address": address} if address else {"address": "local", **own}
    try:
        ray.init(**given, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError, AssertionError) as error:
        raise ConnectionError(
            f"there is no Ray cluster to use at {address or 'this machine'!r} ({' '.join(str(error).split())}); start "
            "one with `ray start`, run on one of its nodes, and where it asks for a token set RAY_AUTH_MODE=token; or "
            'leave the address empty ("") to use this machine alone.'
        ) from None
    try:
        yield ray
    finally:
        ray.shutdown()


def usable_nodes(ray: Any, room: Room) -> dict[str, str]:
    """Names of the live nodes that have room for a unit, by id; there must be at least one."""
    alive = [node for node in ray.nodes() if node["Alive"]]
    usable = {node["NodeID"]: node_name(node) for node in alive if room.is_on(node["Resources"])}
    if not usable:
        rooms = [
            f"{node['Resources'].get('CPU', 0):.0f} CPUs, {node['Resources'].get('GPU', 0):.0f} GPUs and "
            f"{node['Resources'].get('memory', 0) / 1e6:.0f} MB"
            for node in alive
        ]
        raise ValueError(
            f"no node of the cluster has room for a unit of {room}; there are {len(rooms)} nodes with "
            f"{'; '.join(rooms) or 'nothing'}. Lower the threads, or of mining its memory."
        )
    return usable


def node_name(node: Mapping[str, Any]) -> str:
    """Name a node, as messages do."""
    return f"{node['NodeManagerHostname']} ({node['NodeID'][:8]})"


def _require_listener(address: str) -> None:
    """Fail at once if nothing listens; Ray itself would retry for half a minute."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or "/" in host:
        raise ValueError(f'{address!r} is no address of a Ray cluster; give HOST:PORT, "auto", or "" for this machine.')
    try:
        socket.create_connection((host, int(port)), timeout=SECONDS).close()
    except OSError as error:
        raise ConnectionError(
            f"nothing answers at {address} ({error.strerror or error}); is the cluster up (`ray start --head` "
            'listens on port 6379)? Leave the address empty ("") to use this machine alone.'
        ) from None
