"""Processes started by torchrun: the first one runs the stages, and calls the others for each training.

It sends them the training and its settings as JSON; each plans it itself.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path

from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from aoq.pipeline.engine import Engine
from aoq.pipeline.launcher import Asked, Launched
from aoq.pipeline.planning.planner import plan
from aoq.pipeline.produce.joining import Follow, follow_along
from aoq.pipeline.training.processes import Processes

FOREVER = timedelta(days=365)
"""Longest wait between two trainings; the stages between may take days."""
CALLS = "calls"


def call(engine: Engine) -> Store:
    """Call the others to a training; return the store of that training."""
    launched = engine.launched
    assert launched is not None  # only torchrun starts such processes
    assert launched.asked is not None  # a stage that trains is one of an experiment
    settings = asdict(replace(engine, launched=None))
    return _give(launched, json.dumps({"asked": asdict(launched.asked), "engine": settings}).encode())


def dismiss(launched: Launched) -> None:
    """Tell the others that no training is left."""
    _give(launched, b"")


def serve(launched: Launched, follow: Follow) -> None:
    """Follow in every training until none is left; `follow` is given the stage and its chain."""
    store, number = _store(launched), 1
    while True:
        store.wait([_call(number)], FOREVER)
        if not (content := store.get(_call(number))):
            return
        said = json.loads(content)
        engine, asked = Engine(**said["engine"] | {"launched": launched}), Asked(**said["asked"])

        def planned(processes: Processes, engine: Engine, asked: Asked) -> None:
            roots = {"data_root": Path(asked.data_root), "artifact_root": Path(asked.artifact_root)}
            follow(processes, engine, asked.stage, plan(asked.experiment, override=asked.override, **roots))

        follow_along(PrefixStore(_call(number), store), launched.rank, engine, launched.place, planned, [asked])
        number += 1


def _give(launched: Launched, content: bytes) -> Store:
    store = _store(launched)
    number = store.add(CALLS, 1)
    store.set(_call(number), content)  # type: ignore[arg-type]  # the store keeps bytes
    return PrefixStore(_call(number), store)


def _store(launched: Launched) -> Store:
    """Return the store that torchrun keeps."""
    kept = TCPStore(launched.address, launched.port, launched.count, is_master=False, timeout=FOREVER)
    return PrefixStore(f"attempt {launched.attempt}", kept)


def _call(number: int) -> str:
    return f"call {number}"
