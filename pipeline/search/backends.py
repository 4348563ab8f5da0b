"""The search backends by name, one line each. Exact backends find identical lists."""

from __future__ import annotations

import logging
from pathlib import Path

from aoq.pipeline.search.brute_force import gpus
from aoq.pipeline.search.by_faiss import FAISS_FLAT
from aoq.pipeline.search.indexes.backend import FACTORY, RECIPES, indexed_backend
from aoq.pipeline.search.indexes.recall import RECALL_FLOOR
from aoq.pipeline.search.onepass import ONE_PASS
from aoq.pipeline.search.products.choice import fastest_precision
from aoq.pipeline.search.streamed.backend import STREAMED
from aoq.pipeline.search.units import Backend

logger = logging.getLogger(__name__)

BACKENDS: dict[str, Backend] = {
    "onepass": ONE_PASS,
    "faiss-flat": FAISS_FLAT,
    "streamed": STREAMED,
    **{name: indexed_backend(name, RECALL_FLOOR, None) for name in (*RECIPES, f"{FACTORY}FACTORY")},
}


def fastest() -> tuple[Backend, str]:
    """Choose the exact backend that `auto` takes on this machine, and say why."""
    if gpus():
        return BACKENDS["faiss-flat"], f"searching with faiss-flat: FAISS sees {gpus()} GPUs"
    why = f"searching with onepass in {fastest_precision()}: no GPU, and a tile serves both directions"
    return BACKENDS["onepass"], why


def choose_backend(search: str, *, wanted: float = RECALL_FLOOR, kept: Path | None = None) -> Backend:
    """Find a backend by its name; an unknown one is refused with the list of names.

    An approximate one looks for `wanted` of the true lists, and keeps its indexes below the folder `kept`.
    """
    if search == "auto":
        backend, why = fastest()
        logger.info(why)
        return backend
    if search in RECIPES or (search.startswith(FACTORY) and search != FACTORY):
        return indexed_backend(search, wanted, kept)
    if search not in BACKENDS:
        *names, last = ["auto", *BACKENDS]
        raise ValueError(f"there is no search {search!r}; known are {', '.join(names)} and {last}.")
    return BACKENDS[search]


def describe_backends() -> str:
    """List all backends, one line each."""
    lines = [f"{name}: {backend.about}." for name, backend in BACKENDS.items()]
    return "\n".join(["auto: the fastest exact one on this machine.", *lines])
