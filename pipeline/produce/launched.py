"""Processes that torchrun has started: the first one runs the stages, and calls the others for each training.

What it calls them with is pickled, as is what torch sends between them: whoever can reach their port can run code.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from aoq.pipeline.engine import Engine
from aoq.pipeline.launcher import Launched
from aoq.pipeline.produce.joining import Follow, follow_along

FOREVER = timedelta(days=365)
"""What comes between two trainings may take days."""
CALLS = "calls"


def call(engine: Engine, follow: Follow, given: Sequence[Any]) -> Store:
    """Let the others follow in a training; the store is that training's."""
    assert engine.launched is not None  # else they are not there
    return _give(engine.launched, pickle.dumps((follow, engine, given)))


def dismiss(launched: Launched) -> None:
    """There is nothing more to train."""
    _give(launched, b"")


def serve(launched: Launched) -> None:
    """Follow in every training, until there is no more."""
    store, number = _store(launched), 1
    while True:
        store.wait([_call(number)], FOREVER)
        if not (content := store.get(_call(number))):
            return
        follow, engine, given = pickle.loads(content)
        own = replace(engine, launched=launched)
        follow_along(PrefixStore(_call(number), store), launched.rank, own, launched.place, follow, given)
        number += 1


def _give(launched: Launched, content: bytes) -> Store:
    store = _store(launched)
    number = store.add(CALLS, 1)
    store.set(_call(number), content)  # type: ignore[arg-type]  # bytes are what it keeps
    return PrefixStore(_call(number), store)


def _store(launched: Launched) -> Store:
    """The one that torchrun keeps."""
    kept = TCPStore(launched.address, launched.port, launched.count, is_master=False, timeout=FOREVER)
    return PrefixStore(f"attempt {launched.attempt}", kept)


def _call(number: int) -> str:
    return f"call {number}"
