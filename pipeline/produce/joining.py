"""One process among those that train a model: how it meets the others, and how it says why it failed."""

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
"""The longest that one waits for another: what the leader does alone, such as writing a checkpoint, takes less."""
Follow = Callable[..., None]
"""What all but the leader do, given the processes, the engine, and whatever else they need."""


@contextmanager
def joined(store: Store, rank: int, engine: Engine, place: int) -> Iterator[Processes]:
    """Meet the others; `place` is that of this process on its machine."""
    device = engine.torch_device(place)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=engine.processes, timeout=TIMEOUT)
    try:
        yield Processes(rank, engine.processes, device)
    finally:
        dist.destroy_process_group()


def follow_along(store: Store, rank: int, engine: Engine, place: int, follow: Follow, given: Sequence[Any]) -> None:
    """What all but the leader do; what fails here is left in the store."""
    try:
        with joined(store, rank, engine, place) as processes:
            follow(processes, engine, *given)
    except Exception as error:
        with suppress(RuntimeError):  # the leader is gone
            if not isinstance(error, dist.DistError):
                is_told = isinstance(error, (ValueError, OSError, ImportError))
                store.set(_failure(rank), str(error) if is_told else traceback.format_exc())
        raise


def failure(store: Store, count: int) -> str:
    """What one of them left in the store; nothing where none failed by itself."""
    for rank in range(1, count):
        if store.check([_failure(rank)]):
            return f"process {rank} of this training failed: {store.get(_failure(rank)).decode()}"
    return ""


def _failure(rank: int) -> str:
    return f"failure of {rank}"
