"""Lead several processes that train one model, started from here or by torchrun."""

from __future__ import annotations

import logging
import multiprocessing
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from typing import Any

from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from aoq.pipeline.engine import Engine
from aoq.pipeline.orphans import die_with_parent
from aoq.pipeline.produce.joining import RESUMED, TIMEOUT, Follow, failure, follow_along, is_of_network, joined
from aoq.pipeline.produce.launched import call
from aoq.pipeline.training.processes import ALONE, Processes

HERE = "127.0.0.1"
ENDING = 10.0
"""Seconds within which the others must end after the leader."""


@contextmanager
def together(engine: Engine, follow: Follow, *given: Any) -> Iterator[Processes]:
    """Let the others `follow` with the given arguments.

    Raises:
        ChildProcessError: if one of them ended early; it says which, and why.
    """
    if engine.processes == 1:
        yield ALONE
    elif engine.launched is not None:
        store = call(engine)  # they plan what they are to follow
        device = engine.torch_device(engine.launched.place)
        with _told(store, engine.processes, []), joined(store, 0, engine.processes, device) as processes:
            yield processes
    else:
        store = TCPStore(HERE, 0, engine.processes, is_master=True, wait_for_workers=False, timeout=TIMEOUT)
        own = _own(store)
        with (
            _started(engine, store.port, follow, given) as others,
            _told(own, engine.processes, others),
            joined(own, 0, engine.processes, engine.torch_device(0)) as processes,
        ):
            yield processes


@contextmanager
def _started(engine: Engine, port: int, follow: Follow, given: Sequence[Any]) -> Iterator[list[BaseProcess]]:
    """Start the others on this machine; none outlives the block."""
    context = multiprocessing.get_context("spawn")
    others: list[BaseProcess] = [
        context.Process(target=_other, args=(rank, port, engine, follow, given)) for rank in range(1, engine.processes)
    ]
    try:
        for other in others:
            other.start()
        yield others
        for other in others:
            other.join(ENDING)
    finally:
        for other in others:
            if other.pid is not None:
                other.kill()
                other.join()


def _other(rank: int, port: int, engine: Engine, follow: Follow, given: Sequence[Any]) -> None:
    """Run a started process: it logs errors alone, and reports a failure to the leader."""
    die_with_parent()
    logging.getLogger().setLevel(logging.ERROR)
    store = TCPStore(HERE, port, engine.processes, is_master=False, timeout=TIMEOUT)
    try:
        follow_along(_own(store), rank, engine, rank, follow, given)
    except Exception:
        sys.exit(1)  # the leader says why


def _own(store: Store) -> Store:
    return PrefixStore("training", store)


@contextmanager
def _told(store: Store, count: int, others: Sequence[BaseProcess]) -> Iterator[None]:
    """Say why the others are lost: one was killed or failed, and the rest ended without it."""
    try:
        yield
    except RuntimeError as error:
        for other in others:
            other.join(ENDING)
        codes = {rank: other.exitcode or 0 for rank, other in enumerate(others, start=1)}
        killed = [
            f"process {rank} of this training was killed (signal {-code})." for rank, code in codes.items() if code < 0
        ]
        ended = [f"process {rank} of this training ended." for rank, code in codes.items() if code]
        unknown = ["another process of this training ended."] if is_of_network(error) else []
        why = [*killed, *filter(None, [failure(store, count)]), *ended, *unknown]
        if not why:
            raise
        raise ChildProcessError(f"{why[0]} {RESUMED}") from error
