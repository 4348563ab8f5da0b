"""Who searches: a backend plans a job as steps of units, and says what its lists are worth.

    auto            the fastest exact one on this machine
    onepass         both directions from one pass over tiles of similarities; exact
    faiss-flat      one brute-force search a direction, by FAISS, on a GPU if there is one; exact
    faiss:FACTORY   any index of FAISS, "faiss:IVF256,Flat|nprobe=32" say; its recall is measured on a sample

Exact lists are the same whoever found them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from aoq.pipeline.search.approximate import approximate_steps, measured_recall
from aoq.pipeline.search.brute_force import gpus
from aoq.pipeline.search.flat import flat_steps
from aoq.pipeline.search.onepass import one_pass_steps
from aoq.pipeline.search.problem import Direction, Problem
from aoq.pipeline.search.products.choice import fastest_precision
from aoq.pipeline.search.store import Store
from aoq.pipeline.search.units import Steps

logger = logging.getLogger(__name__)

FACTORY = "faiss:"


def _exact(store: Store, direction: Direction) -> Mapping[str, Any]:
    return {"guarantee": "exact"}


def _sampled(store: Store, direction: Direction) -> Mapping[str, Any]:
    return {"guarantee": "approximate", **measured_recall(store, direction)}


@dataclass(frozen=True)
class Backend:
    name: str
    plan: Callable[[Problem], Steps]
    guarantee: Callable[[Store, Direction], Mapping[str, Any]] = _exact
    """Of a direction's lists, once all units are done."""


EXACT = {"onepass": Backend("onepass", one_pass_steps), "faiss-flat": Backend("faiss-flat", flat_steps)}


def fastest() -> tuple[str, str]:
    """The exact search that `auto` takes on this machine, and why."""
    if gpus():
        return "faiss-flat", f"searching with faiss-flat: FAISS sees {gpus()} GPUs"
    return "onepass", f"searching with onepass in {fastest_precision()}: no GPU, and a tile serves both directions"


def choose_backend(search: str) -> Backend:
    if search == "auto":
        search, why = fastest()
        logger.info(why)
    if search.startswith(FACTORY):
        return Backend(search, partial(approximate_steps, description=search.removeprefix(FACTORY)), _sampled)
    if search not in EXACT:
        raise ValueError(f"there is no search {search!r}; known are auto, {', '.join(EXACT)} and faiss:FACTORY.")
    return EXACT[search]
