"""Backend faiss-flat: FAISS's brute-force search proposes candidates, which are then scored exactly.

The last proposed score plus float32's rounding error bounds all other candidates. An anchor whose h-th negative does
not exceed that bound is searched by the one pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache, partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import pyarrow as pa
from jaxtyping import Float32, Int64

from aoq.pipeline.engine import CHOOSE_CPU, find_device
from aoq.pipeline.search.exact import certify, lists_table, on_device, rescored
from aoq.pipeline.search.problem import Direction, Problem, Side, blocks
from aoq.pipeline.search.units import Backend, Steps, Store, Unit, unit_name

ANCHOR_ROWS = 4096
"""Anchors per unit; a crash loses at most one unit."""
SLACK = 32
"""Candidates requested beyond h and the positives."""
GPU_MOST = 2048
"""The longest list that FAISS returns on a GPU."""


def has_faiss() -> bool:
    return find_spec("faiss") is not None


@cache
def load_faiss() -> Any:
    try:
        import faiss
    except ImportError as error:
        raise ImportError(
            'this search needs FAISS, which is not installed: `pip install "aoq[cpu]"` (faiss-cpu) or '
            '`pip install "aoq[gpu]"` (faiss-gpu); or search with onepass, which needs neither.'
        ) from error
    return faiss


def gpus() -> int:
    """Count the GPUs that FAISS sees."""
    return int(load_faiss().get_num_gpus()) if has_faiss() else 0


def flat_search(side: Side, k: int) -> tuple[Float32[np.ndarray, "anchors k"], Int64[np.ndarray, "anchors k"]]:
    """Find the k candidates of highest dot product for each anchor, falling, on the side's device."""
    faiss, device = load_faiss(), find_device(side.device)
    anchors, candidates = (np.ascontiguousarray(each, np.float32) for each in (side.anchors, side.candidates))
    if device.type != "cuda" or not gpus() or k > GPU_MOST:
        return faiss.knn(anchors, candidates, k, metric=faiss.METRIC_INNER_PRODUCT)
    try:
        if "faiss" not in side.cache:  # candidates are uploaded once
            flat = faiss.GpuIndexFlatConfig()
            flat.device = device.index
            side.cache["faiss"] = faiss.GpuIndexFlatIP(faiss.StandardGpuResources(), candidates.shape[1], flat)
            side.cache["faiss"].add(candidates)
        return _in_halves(side.cache["faiss"], anchors, k)
    except RuntimeError as error:
        raise OSError(
            f"FAISS failed on {device} ({str(error).splitlines()[0]}); finished units are kept: run again with "
            f"onepass, whose tiles fit into less memory, or {CHOOSE_CPU}."
        ) from error


def _in_halves(index: Any, anchors: Float32[np.ndarray, "anchors D"], k: int) -> tuple[np.ndarray, np.ndarray]:
    """Search all anchors at once, or in halves if memory runs out."""
    try:
        return index.search(anchors, k)
    except RuntimeError as error:
        if "memory" not in str(error).lower() or len(anchors) == 1:
            raise
    halves = [_in_halves(index, half, k) for half in np.array_split(anchors, 2)]
    return np.concatenate([half[0] for half in halves]), np.concatenate([half[1] for half in halves])


def portions(start: int, stop: int, k: int, memory: int) -> list[tuple[int, int]]:
    """Split anchors so that their k candidates fit into the memory: keys, sorted copies and the search's results."""
    return [(start + first, start + last) for first, last in blocks(stop - start, max(1, memory // (200 * k)))]


def _search_flat(direction: Direction, start: int, stop: int, problem: Problem, store: Store) -> list[pa.Table]:
    k = min(problem.size(direction).wanted + SLACK, problem.size(direction).candidates)
    parts = portions(start, stop, k, problem.memory)
    return [pa.concat_tables(_flat_lists(problem[direction].rows(slice(*part)), k, part[0]) for part in parts)]


def _flat_lists(side: Side, k: int, start: int) -> pa.Table:
    near, ids = flat_search(side, k)
    heads = rescored(side, ids)
    error = 1.01 * (side.anchors.shape[1] + 2) * 2.0**-24 * side.anchor_norms * side.candidate_norms.max()
    others = np.nextafter((near[:, -1] + error).astype(np.float32), np.float32(np.inf))
    heads = replace(heads, bound=others if k < len(side.candidates) else np.full_like(others, -np.inf))
    if not heads.certified.all():
        heads = on_device(side, lambda scan: certify(heads, side, scan))
    return lists_table(side, heads, start)


def _flat_steps(problem: Problem) -> Steps[Problem]:
    load_faiss()  # fail before anything is read if FAISS is missing
    units = [
        Unit((unit_name(direction, *rows),), partial(_search_flat, direction, *rows))
        for direction in problem.directions
        for rows in blocks(problem.size(direction).anchors, ANCHOR_ROWS)
    ]
    return [units]


def _brute_force_costs(problem: Problem) -> Mapping[str, float]:
    pairs = len(problem.images) * len(problem.captions) * len(problem.directions)
    return {"brute-force search and lists": 2.0 * problem.images.shape[1] * pairs}


FAISS_FLAT = Backend(
    "faiss-flat",
    "exact, a brute-force search for each direction by FAISS, on a GPU or the CPU",
    _flat_steps,
    costs=_brute_force_costs,
)
