"""Backend faiss-flat: a brute-force search by FAISS."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
import pyarrow as pa

from aoq.pipeline.search.brute_force import load_faiss
from aoq.pipeline.search.exact import exact_heads, lists_table
from aoq.pipeline.search.problem import Direction, Problem, blocks
from aoq.pipeline.search.store import Store
from aoq.pipeline.search.units import Backend, Steps, Unit, unit_name

BLOCK = 4096
"""Anchors per unit; a crash loses at most one unit."""


def _search(direction: Direction, start: int, stop: int, problem: Problem, store: Store) -> list[pa.Table]:
    side = problem[direction].rows(np.arange(start, stop))
    return [lists_table(side, exact_heads(side), start)]


def _flat_steps(problem: Problem) -> Steps[Problem]:
    load_faiss()  # fails here, before anything is read, where FAISS is missing
    units = [
        Unit((unit_name(direction, *rows),), partial(_search, direction, *rows))
        for direction in problem.directions
        for rows in blocks(problem.size(direction).anchors, BLOCK)
    ]
    return [units]


def _brute_force_costs(problem: Problem) -> Mapping[str, float]:
    pairs = len(problem.images) * len(problem.captions) * len(problem.directions)
    return {"brute-force search and lists": 2.0 * problem.images.shape[1] * pairs}


FAISS_FLAT = Backend(
    "faiss-flat",
    "exact, a brute-force search for each direction by FAISS, on GPUs if any",
    _flat_steps,
    costs=_brute_force_costs,
)
