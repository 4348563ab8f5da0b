"""The search backends by name, one line each. Exact backends find identical lists."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from aoq.pipeline.search.brute_force import gpus
from aoq.pipeline.search.by_faiss import FAISS_FLAT
from aoq.pipeline.search.device.choice import find_device, on_device
from aoq.pipeline.search.indexes.backend import FACTORY, RECIPES, indexed_backend
from aoq.pipeline.search.onepass import ONE_PASS
from aoq.pipeline.search.problem import Problem
from aoq.pipeline.search.units import RECALL_FLOOR, Backend, never

logger = logging.getLogger(__name__)


def one_pass(problem: Problem) -> Backend:
    """Make the one pass for the problem's device."""
    device = find_device(problem.device)
    return ONE_PASS if device.type == "cpu" else on_device(device)


def _one_pass_costs(problem: Problem) -> Mapping[str, float]:
    costs = one_pass(problem).costs
    assert costs is not None  # that of a device has some, as that of the CPU has
    return costs(problem)


def by_step(backend: Backend, problem: Problem) -> Backend:
    """The backend that searches this problem, through files even if it is small: as a larger one of its kind."""
    return replace(one_pass(problem), is_small=never) if backend.name == ONE_PASS.name else backend


BACKENDS: dict[str, Backend] = {
    "onepass": replace(
        ONE_PASS,
        about="exact, both directions from one pass over tiles of similarities, on a GPU or the CPU",
        plan=lambda problem: one_pass(problem).plan(problem),
        costs=_one_pass_costs,
        work_bytes=lambda problem: one_pass(problem).work_bytes(problem),
        is_small=lambda problem: one_pass(problem).is_small(problem),
    ),
    "faiss-flat": FAISS_FLAT,
    **{name: indexed_backend(name, RECALL_FLOOR, None) for name in (*RECIPES, f"{FACTORY}FACTORY")},
}


def fastest(device: str = "auto") -> tuple[Backend, str]:
    """Choose the exact backend that `auto` takes on this machine and device, and say why."""
    found = find_device(device)
    if found.type == "cuda":
        return BACKENDS["onepass"], f"on {found}, a tile serves both directions"
    if gpus() and device == "auto":
        return BACKENDS["faiss-flat"], f"FAISS sees {gpus()} GPUs"
    return BACKENDS["onepass"], "no GPU, and a tile serves both directions"


def choose_backend(
    search: str, device: str = "auto", *, wanted: float = RECALL_FLOOR, kept: Path | None = None
) -> Backend:
    """Find a backend by its name; an unknown one is refused with the list of names. `auto` depends on the device.

    An approximate one looks for `wanted` of the true lists, and keeps its indexes below the folder `kept`.
    """
    if search == "streamed":
        logger.warning('search = "streamed" is an old name of "onepass", which finds the same lists; write "onepass"')
        search = "onepass"
    if search == "auto":
        backend, why = fastest(device)
        logger.info("searching with %s: %s", backend.name, why)
        return backend
    if search in RECIPES or (search.startswith(FACTORY) and search != FACTORY):
        return indexed_backend(search, wanted, kept)
    if search not in BACKENDS:
        *names, last = ["auto", *BACKENDS]
        raise ValueError(f"there is no search {search!r}; known are {', '.join(names)} and {last}.")
    return BACKENDS[search]
