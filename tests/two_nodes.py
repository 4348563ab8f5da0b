"""A Ray cluster of a few nodes on this machine, for tests marked `cluster`."""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from aoq.pipeline import on_ray

STORE_BYTES = 80_000_000


@contextmanager
def two_nodes(module: str, memory: int, more: int = 1) -> Iterator[Any]:
    """A head and `more` nodes, of which one is `second`, of one processor each; a lost one is noticed within seconds.

    What the test module brings of its own travels to the workers, which do not have it.
    """
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    os.environ.update(on_ray.DEFAULTS)
    ray.cloudpickle.register_pickle_by_value(sys.modules[module])
    checks = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 4}
    node = {"num_cpus": 1, "object_store_memory": STORE_BYTES, "memory": memory}
    started = Cluster()
    try:
        started.add_node(**node, include_dashboard=False, _system_config=checks)
        started.second, *started.others = (started.add_node(**node) for _ in range(more))
        ray.init(started.address, log_to_driver=False)
        yield started
    finally:
        ray.shutdown()
        started.shutdown()
        ray.cloudpickle.unregister_pickle_by_value(sys.modules[module])


def wait_for(there: Callable[[], bool]) -> None:
    while not there():
        time.sleep(0.05)


def is_first(marker: Path) -> bool:
    """Leave the marker; return False if it is there already."""
    try:
        marker.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def begin_to_lose(cluster: Any, node: Any, marker: Path) -> threading.Thread:
    """Start a thread that removes the node once the marker is there."""

    def lose() -> None:
        wait_for(marker.exists)
        cluster.remove_node(node, allow_graceful=False)

    losing = threading.Thread(target=lose, daemon=True)
    losing.start()
    return losing
