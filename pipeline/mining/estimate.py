"""Estimate of the cost of mining: a piece of the problem is mined, and its cost is scaled by counts."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from jaxtyping import Float32

from aoq.pipeline.mining.index_cost import IndexEstimate, estimate_index, measure_rates
from aoq.pipeline.mining.mine import mine
from aoq.pipeline.search.backends import by_step, choose_backend, fastest
from aoq.pipeline.search.brute_force import has_faiss
from aoq.pipeline.search.problem import DIRECTIONS, Problem
from aoq.pipeline.search.units import Backend
from aoq.pipeline.search.vectors import check_vectors

LOOKING, WRITING = "looking the vectors through", "writing the table"
PIECES = 2
PIECE_IMAGES, PIECE_CAPTIONS = 4096, 8192
LEAST_PAIRS = 10**7
"""Pairs from which on a search's time says how it grows; what a smaller one takes is mostly its start."""
WARM_UP = 64
"""Rows of either side that are mined before the clock starts, because code is compiled then."""

Vectors = tuple[Float32[np.ndarray, "_ D"], Float32[np.ndarray, "_ D"]]


@dataclass(frozen=True)
class Estimate:
    shape: Mapping[str, int]
    search: str
    why: str
    operations: float | None
    """Floating-point operations; None if they depend on an index."""
    seconds: Mapping[str, float]
    """Seconds by step; empty if they depend on an index of unknown steps."""
    memory_bytes: int
    """Memory beyond the vectors."""
    vector_bytes: int
    """Bytes of the mapped vectors; the system caches what fits."""
    work_bytes: int
    table_bytes: int
    index: IndexEstimate | None = None
    """An index beside an exact search, here and at larger sizes; None without FAISS, and of a small problem."""


def estimate(
    problem: Problem,
    search: str,
    vectors: Vectors | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Estimate:
    """Mine a piece in the same proportions, and scale the time of each step by its operations.

    `vectors` replace those of a problem that has none yet (`unknown_vectors`). `progress` is called with the number of
    pieces that are mined, and of all: a small one to warm up, and the one that is timed.
    """
    backend, why = fastest(problem.device) if search == "auto" else (choose_backend(search), "as asked")
    images, captions = vectors or (problem.images, problem.captions)
    images, captions = images[:PIECE_IMAGES], captions[:PIECE_CAPTIONS]
    timed = backend if backend.costs else fastest(problem.device)[0]
    piece, timed = _piece(problem, images, captions), by_step(timed, problem)
    progress(0, PIECES)
    _mine(_piece(problem, images[:WARM_UP], captions[:WARM_UP]), timed)
    progress(1, PIECES)
    seconds, table_bytes = _mine(piece, timed)
    progress(PIECES, PIECES)
    seconds = {LOOKING: _reading_seconds(images, captions), **seconds}
    costs, measured = _costs(problem, timed), _costs(piece, timed)
    exact = {step: seconds[step] * cost / measured[step] for step, cost in costs.items()}
    index = _index(problem, exact)
    return Estimate(
        _shape(problem),
        backend.name,
        why,
        sum(backend.costs(problem).values()) if backend.costs else None,
        exact if backend.costs else _index_seconds(backend, index, exact),
        problem.memory,
        4 * problem.images.shape[1] * _vector_count(problem),
        int(backend.work_bytes(problem)),
        int(table_bytes * (costs[WRITING] / measured[WRITING])),
        index,
    )


def _index(problem: Problem, exact: Mapping[str, float]) -> IndexEstimate | None:
    """Compare an index with an exact search, whose steps all grow as the pairs but for those of the rows alone."""
    if not has_faiss() or len(problem.images) * len(problem.captions) < LEAST_PAIRS:
        return None
    wanted = max(problem.size(direction).wanted for direction in problem.directions)
    by_rows = exact[LOOKING] + exact[WRITING]
    rates = measure_rates(problem.images.shape[1], wanted)
    return estimate_index(problem, sum(exact.values()) - by_rows, by_rows, rates)


def _index_seconds(backend: Backend, index: IndexEstimate | None, exact: Mapping[str, float]) -> Mapping[str, float]:
    """Seconds of an index of cells, whose steps are known; of others nothing is."""
    if backend.name != "ivf" or index is None:
        return {}
    return {LOOKING: exact[LOOKING], **index.seconds, WRITING: exact[WRITING]}


def unknown_vectors(images: int, captions: int, dimensions: int) -> tuple[Vectors, Vectors]:
    """Vectors without memory, for a problem's shape, and random unit vectors for a piece of it."""
    rng = np.random.default_rng(0)
    drawn = [
        rng.standard_normal((min(count, most), dimensions), dtype=np.float32)
        for count, most in ((images, PIECE_IMAGES), (captions, PIECE_CAPTIONS))
    ]
    one, other = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True) for vectors in drawn)
    empty = (np.broadcast_to(np.float32(0), (count, dimensions)) for count in (images, captions))
    return (next(empty), next(empty)), (one, other)


def _shape(problem: Problem) -> dict[str, int]:
    images, captions, dimensions = len(problem.images), *problem.captions.shape
    most = problem.size("i2t").wanted - problem.h_captions
    depths = {"h_captions": problem.h_captions, "h_images": problem.h_images}
    return {"images": images, "captions": captions, "dimensions": dimensions, "most_captions": most, **depths}


def _piece(problem: Problem, images: np.ndarray, captions: np.ndarray) -> Problem:
    """Cut a smaller problem; its h shrink in proportion, so that tiles and lists keep their proportions."""
    if problem.one_set:
        captions = images
    positives = problem.positives[(problem.positives < [len(images), len(captions)]).all(axis=1)]
    most = [int(np.bincount(column, minlength=1).max()) for column in positives.T]
    if most[0] + problem.one_set >= len(captions) or most[1] >= len(images):  # some anchor would have no negative
        positives, most = positives[:0], [0, 0]
    depths = []
    for size, candidates, own in zip(map(problem.size, DIRECTIONS), (captions, images), most, strict=True):
        h = max(1, round(size.h * len(candidates) / size.candidates))
        depths.append(min(h, len(candidates) - own - problem.one_set) if size.h else 0)
    return Problem(images, captions, positives, depths[0], depths[1], problem.memory, problem.one_set, problem.device)


def _mine(problem: Problem, backend: Backend) -> tuple[dict[str, float], int]:
    """Seconds of each step and of writing the table, and the table's bytes."""
    _, *names = _costs(problem, backend)
    ends, times = np.cumsum([len(step) for step in backend.plan(problem)]), [time.perf_counter()]

    def progress(done: int, total: int) -> None:
        if done in ends:
            times.append(time.perf_counter())

    with TemporaryDirectory() as temporary, _warnings_alone():
        work, output = Path(temporary) / "work", Path(temporary) / "table"
        mine(problem, search=backend, provenance={}, work=work, output=output, recall_floor=0.0, progress=progress)
        times.append(time.perf_counter())
        written = sum((output / f"{direction}.parquet").stat().st_size for direction in problem.directions)
    return dict(zip(names, np.diff(times).tolist(), strict=False)), written


@contextmanager
def _warnings_alone() -> Iterator[None]:
    """Keep from the log what a search says of a piece, which is nothing about the whole."""
    log = logging.getLogger("aoq.pipeline.search")
    before = log.level
    log.setLevel(logging.WARNING)
    try:
        yield
    finally:
        log.setLevel(before)


def _reading_seconds(*sides: np.ndarray) -> float:
    started = time.perf_counter()
    for vectors in sides:
        sha256(vectors.tobytes())
        check_vectors(vectors, "", unit=False)
    return time.perf_counter() - started


def _vector_count(problem: Problem) -> int:
    return len(problem.images) + (0 if problem.one_set else len(problem.captions))


def _costs(problem: Problem, backend: Backend) -> dict[str, float]:
    """Quantities that each step's time grows with: vectors, the search's operations, the lists' entries.

    Steps of a direction that is left out have no operations and are dropped.
    """
    operations = {step: cost for step, cost in (backend.costs(problem) if backend.costs else {}).items() if cost}
    vectors = float(_vector_count(problem))
    entries = float(sum(size.anchors * size.h for size in map(problem.size, DIRECTIONS)))
    return {LOOKING: vectors, **operations, WRITING: entries}
