"""One of several processes that train a model: join the others, and report failures."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import torch
from torch import distributed as dist
from torch.distributed import Store  # type: ignore[attr-defined]

from aoq.pipeline.engine import Engine
from aoq.pipeline.training.processes import Processes

TIMEOUT = timedelta(minutes=15)
"""Longest wait for another process: the leader's own work, such as writing a checkpoint, takes less."""
RESUMED = "Run again: the training goes on from its last checkpoint."
TOLD = (ValueError, OSError, ImportError)
"""Errors that say all in their message; others are bugs, and keep their traceback."""
Follow = Callable[..., None]
"""Work of all but the leader, given the processes, the engine, and further arguments."""


@contextmanager
def joined(store: Store, rank: int, count: int, device: torch.device) -> Iterator[Processes]:
    """Join the others, so that there are `count`, each with a device of its own."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=count, timeout=TIMEOUT)
    try:
        yield Processes(rank, count, device)
    finally:
        dist.destroy_process_group()


def follow_along(store: Store, rank: int, engine: Engine, place: int, follow: Follow, given: Sequence[Any]) -> None:
    """Do the work of all but the leader; a failure is written to the store."""
    try:
        with joined(store, rank, engine.processes, engine.torch_device(place)) as processes:
            follow(processes, engine, *given)
    except Exception as error:
        with suppress(RuntimeError):  # the leader is gone
            if not isinstance(error, dist.DistError):
                said = str(error) if isinstance(error, TOLD) else traceback.format_exc()
                store.set(_failure(rank), said)
        raise


def is_of_network(error: BaseException) -> bool:
    """Return whether a process raised this because another is gone."""
    return isinstance(error, dist.DistError) or "gloo" in str(error)


def failure(store: Store, count: int) -> str:
    """Return the failure that a process wrote to the store; empty if none did."""
    for rank in range(1, count):
        if store.check([_failure(rank)]):
            return f"process {rank} of this training failed: {store.get(_failure(rank)).decode()}"
    return ""


def _failure(rank: int) -> str:
    return f"failure of {rank}"
