"""Forecast mining: mine a piece of the problem, and scale the time of each step by its operations."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from jaxtyping import Float32

from aoq.pipeline.mining.mine import mine
from aoq.pipeline.search.backends import choose_backend
from aoq.pipeline.search.exact import ONE_PASS
from aoq.pipeline.search.problem import DIRECTIONS, Problem
from aoq.pipeline.search.units import Backend
from aoq.pipeline.vectors import checked_norms

READING, WRITING = "reading the vectors", "writing the table"
PIECE_IMAGES, PIECE_CAPTIONS = 4096, 8192
LEAST_PAIRS = 10**7  # a smaller search spends most of its time starting up, which does not grow with its size
WARM_UP = 64  # rows per side that are mined first, so that code is compiled before the clock starts
LEAST_DEPTH = 4  # shorter lists of a piece would need far more second searches than those of the whole problem
DAY = 86_400.0

_SideVectors = tuple[Float32[np.ndarray, "_ D"], Float32[np.ndarray, "_ D"]]


@dataclass(frozen=True)
class Estimate:
    shape: Mapping[str, int]
    search: str
    why: str
    seconds: Mapping[str, float]
    """Seconds by step; empty if they depend on an index."""
    memory_bytes: int
    """Memory beyond the vectors."""
    vector_bytes: int
    """Bytes of the mapped vectors; the system caches as many as fit."""
    work_bytes: int
    table_bytes: int
    affordable_images: int | None
    """The number of images for which an exact search takes a day in this shape; None for a small problem."""


def estimate(problem: Problem, search: str, vectors: _SideVectors | None = None) -> Estimate:
    """Mine a piece in the same proportions, and scale the time of each step by its operations.

    `vectors` replace those of a problem that has none yet (`unknown_vectors`).
    """
    backend, why = ONE_PASS, "a tile serves both directions"
    if search != "auto":
        backend, why = choose_backend(search), "as asked"
    images, captions = vectors or (problem.images, problem.captions)
    images, captions = images[:PIECE_IMAGES], captions[:PIECE_CAPTIONS]
    piece = take_piece(problem, images, captions)
    timed = backend if backend.costs else ONE_PASS
    _time_mining(take_piece(problem, images[:WARM_UP], captions[:WARM_UP]), timed)
    seconds, table_bytes = _time_mining(piece, timed)
    costs, measured, dimensions = _step_costs(problem, timed), _step_costs(piece, timed), images.shape[1]
    exact = {step: seconds[step] * cost / measured[step] for step, cost in costs.items()}
    affordable = None
    if len(problem.images) * len(problem.captions) >= LEAST_PAIRS:
        by_rows = exact[READING] + exact[WRITING]
        by_pairs = sum(exact.values()) - by_rows
        # The positive root of by_pairs x^2 + by_rows x = DAY, where x is the factor by which the problem grows.
        affordable = int(len(problem.images) * 2 * DAY / (by_rows + math.sqrt(by_rows**2 + 4 * by_pairs * DAY)))
    shape = {"images": len(problem.images), "captions": len(problem.captions), "dimensions": dimensions}
    shape |= {"most_captions": problem.size("i2t").wanted - problem.h_captions}
    return Estimate(
        {**shape, "h_captions": problem.h_captions, "h_images": problem.h_images},
        backend.name,
        why,
        exact if backend.costs else {},
        problem.memory,
        int(4 * dimensions * costs[READING]),
        int(backend.work_bytes(problem)),
        int(table_bytes * (costs[WRITING] / measured[WRITING])),
        affordable,
    )


def take_piece(problem: Problem, images: np.ndarray, captions: np.ndarray) -> Problem:
    """Take a piece of the problem without its pairs, with depths reduced in proportion."""
    captions = images if problem.one_set else captions
    h_captions = -(-problem.h_captions * len(captions) // len(problem.captions))
    h_images = -(-problem.h_images * len(images) // len(problem.images))
    return replace(
        problem,
        images=images,
        known_norms=None,
        captions=captions,
        positives=np.empty((0, 2), np.int32),
        h_captions=min(max(h_captions, min(LEAST_DEPTH, problem.h_captions)), len(captions) - problem.one_set),
        h_images=min(max(h_images, min(LEAST_DEPTH, problem.h_images)), len(images)),
    )


def unknown_vectors(images: int, captions: int, dimensions: int) -> tuple[_SideVectors, _SideVectors]:
    """Make vectors that take no memory, for a problem's shape, and random unit vectors for a piece of it."""
    rng, zero = np.random.default_rng(0), np.float32(0)

    def unit(count: int) -> Float32[np.ndarray, "_ D"]:
        drawn = rng.standard_normal((count, dimensions), dtype=np.float32)
        return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)

    whole = np.broadcast_to(zero, (images, dimensions)), np.broadcast_to(zero, (captions, dimensions))
    return whole, (unit(min(images, PIECE_IMAGES)), unit(min(captions, PIECE_CAPTIONS)))


def _time_mining(problem: Problem, backend: Backend) -> tuple[dict[str, float], int]:
    """Mine the problem; return the seconds of each step, reading and writing included, and the table's bytes."""
    log, ends = logging.getLogger("aoq.pipeline.search"), np.cumsum([len(step) for step in backend.plan(problem)])
    level, times = log.level, [time.perf_counter()]
    for vectors in (problem.images, problem.captions)[: 2 - problem.one_set]:
        sha256(vectors.tobytes())
        checked_norms(vectors, "")
    times.append(time.perf_counter())

    def progress(done: int, total: int) -> None:
        if done in ends:
            times.append(time.perf_counter())

    with TemporaryDirectory() as temporary:
        work, output = Path(temporary) / "work", Path(temporary) / "table"
        log.setLevel(logging.WARNING)  # messages about a piece would seem to be about the whole
        try:
            mine(problem, search=backend, provenance={}, work=work, output=output, recall_floor=0.0, progress=progress)
        finally:
            log.setLevel(level)
        times.append(time.perf_counter())
        written = sum((output / f"{direction}.parquet").stat().st_size for direction in problem.directions)
    return dict(zip(_step_costs(problem, backend), np.diff(times).tolist(), strict=False)), written


def _step_costs(problem: Problem, backend: Backend) -> dict[str, float]:
    """Return the costs that each step's time is proportional to: vectors, operations of the search, list entries.

    Steps of a direction that is left out have no operations and are dropped.
    """
    operations = {step: cost for step, cost in (backend.costs(problem) if backend.costs else {}).items() if cost}
    vectors = float(len(problem.images) + (0 if problem.one_set else len(problem.captions)))
    return {READING: vectors, **operations, WRITING: float(sum(s.anchors * s.h for s in map(problem.size, DIRECTIONS)))}
