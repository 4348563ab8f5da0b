"""Choose the backend of a search. Nothing here loads torch or what is compiled, so that a small job need not."""

from __future__ import annotations

import sys
from pathlib import Path

from aoq.pipeline.search.problem import Problem
from aoq.pipeline.search.small import SMALL, is_small
from aoq.pipeline.search.threads import keep_threads
from aoq.pipeline.search.units import RECALL_FLOOR, Backend

LOADED = "aoq.pipeline.search.onepass"
"""The module of the tiles, which loads torch and compiles kernels; once it is there, it is faster."""


def backend_of(problem: Problem, search: str, *, wanted: float = RECALL_FLOOR, kept: Path | None = None) -> Backend:
    """Choose the backend of this problem by the name of its search (`aoq.pipeline.search.backends`)."""
    here = problem.device in ("auto", "cpu")
    if search in ("auto", SMALL.name) and here and is_small(problem) and LOADED not in sys.modules:
        return SMALL
    from aoq.pipeline.search.backends import choose_backend

    keep_threads()
    return choose_backend(search, problem.device, wanted=wanted, kept=kept)
