"""Several processes on this machine train one model: this one leads, and starts the others."""

from __future__ import annotations

import logging
import multiprocessing
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from multiprocessing.process import BaseProcess
from typing import Any

import torch
from torch import distributed as dist
from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]

from aoq.pipeline.engine import Engine
from aoq.pipeline.orphans import die_with_parent
from aoq.pipeline.training.processes import ALONE, Processes

HERE = "127.0.0.1"
TIMEOUT = timedelta(minutes=15)
"""The longest that one waits for another: what the leader does alone, such as writing a checkpoint, takes less."""
ENDING = 10.0
"""Seconds that the others have to end after the leader."""


@contextmanager
def together(engine: Engine, follow: Callable[..., None], *given: Any) -> Iterator[Processes]:
    """Start the others, each of which calls `follow` with the processes, the engine and what is given.

    Raises:
        ChildProcessError: where one of them ended before its time; it says which, and why.
    """
    if engine.processes == 1:
        yield ALONE
        return
    store = TCPStore(HERE, 0, engine.processes, is_master=True, wait_for_workers=False, timeout=TIMEOUT)
    context = multiprocessing.get_context("spawn")
    others = [
        context.Process(target=_other, args=(rank, store.port, engine, follow, given), daemon=True)
        for rank in range(1, engine.processes)
    ]
    try:
        for other in others:
            other.start()
        with _joined(store, 0, engine) as processes:
            yield processes
    except RuntimeError as error:
        if lost := _why_lost(others, store):
            raise ChildProcessError(f"{lost} Run again: the training goes on from its last checkpoint.") from error
        raise
    else:
        for other in others:
            other.join(ENDING)
    finally:
        for other in others:
            if other.pid is not None:
                other.kill()
                other.join()


@contextmanager
def _joined(store: Store, rank: int, engine: Engine) -> Iterator[Processes]:
    device = engine.torch_device(rank)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=engine.processes, timeout=TIMEOUT)
    try:
        yield Processes(rank, engine.processes, device)
    finally:
        dist.destroy_process_group()


def _other(rank: int, port: int, engine: Engine, follow: Callable[..., None], given: Sequence[Any]) -> None:
    """What a started process does: it says nothing, but to the leader why it failed."""
    die_with_parent()
    logging.getLogger().setLevel(logging.ERROR)
    store = TCPStore(HERE, port, engine.processes, is_master=False, timeout=TIMEOUT)
    try:
        with _joined(store, rank, engine) as processes:
            follow(processes, engine, *given)
    except Exception as error:
        with suppress(RuntimeError):  # the leader is gone
            if not isinstance(error, dist.DistError):
                is_told = isinstance(error, (ValueError, OSError, ImportError))
                store.set(_failure(rank), str(error) if is_told else traceback.format_exc())
        sys.exit(1)


def _failure(rank: int) -> str:
    return f"failure of {rank}"


def _why_lost(others: Sequence[BaseProcess], store: Store) -> str:
    """The first cause: one that was killed, or one that failed by itself; the rest ended for want of these."""
    for other in others:
        other.join(ENDING)
    for rank, other in enumerate(others, start=1):
        if other.exitcode is not None and other.exitcode < 0:
            return f"process {rank} of this training was killed (signal {-other.exitcode})."
    for rank in range(1, len(others) + 1):
        if store.check([_failure(rank)]):
            return f"process {rank} of this training failed: {store.get(_failure(rank)).decode()}"
    ended = [rank for rank, other in enumerate(others, start=1) if other.exitcode]
    return f"process {ended[0]} of this training ended." if ended else ""
