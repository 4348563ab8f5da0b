"""Forecast mining: mine a piece of the problem, and scale the time of each step by counts.

An index of cells (`ivf`) is not built: each of its steps is a product of counts, divided by a rate that is measured on
this machine. An exact search takes time in proportion to the pairs, an index to N^1.5: each of N anchors visits
`BREADTH` of C cells of N / C vectors, and C is about 4 sqrt(N).
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from timeit import repeat
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32

from aoq.pipeline.mining.mine import mine
from aoq.pipeline.search.backends import choose_backend, piece_of
from aoq.pipeline.search.exact import ONE_PASS
from aoq.pipeline.search.faiss_build import PER_CELL, Sizes, ivf
from aoq.pipeline.search.faiss_flat import has_faiss, load_faiss
from aoq.pipeline.search.faiss_index import SAMPLED, TUNED_ON, candidates_asked
from aoq.pipeline.search.problem import DIRECTIONS, Problem, Size
from aoq.pipeline.search.scores import exact_scores
from aoq.pipeline.search.units import Backend, never
from aoq.pipeline.vectors import norms_of

LOOKING, WRITING = "looking the vectors through", "writing the table"
PIECES = 2
PIECE_IMAGES, PIECE_CAPTIONS = 4096, 8192
LEAST_PAIRS = 10**7  # a smaller search takes most of its time to start, which says nothing about its growth
WARM_UP = 64  # rows per side that are mined first, so that code is compiled before the clock starts
DAY = 86_400.0
BREADTH = 64  # cells that an anchor visits, until a run measures how many the recall needs
ROUNDS = 10  # of k-means, by FAISS
SIZES = 1_000_000, 10_000_000, 50_000_000
PROBED, PROBED_ANCHORS = 8192, 512  # random vectors by which rates are measured

Vectors = tuple[Float32[np.ndarray, "_ D"], Float32[np.ndarray, "_ D"]]


class Rates(NamedTuple):
    """Rates of this machine, per second: multiply-adds of float32, 8-bit codes compared, pairs scored exactly."""

    multiplied: float
    scanned: float
    scored: float


@dataclass(frozen=True)
class Scale:
    """Both ways of searching, at one size."""

    images: int
    captions: int
    exact_seconds: float
    index_seconds: float
    index_bytes: int
    building_bytes: int
    """Memory that the larger index is built in."""


@dataclass(frozen=True)
class IndexEstimate:
    """Both ways at the problem's size and at larger ones of the same shape."""

    asked: Scale
    larger: Sequence[Scale]
    """At `SIZES` images."""
    affordable_images: int
    """The number of images for which an exact search takes a day."""
    arithmetic: Sequence[str]
    """The steps of an index at the largest size, one line per step and direction."""
    seconds: Mapping[str, float]
    """Steps of an index at the problem's size."""


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
    """Bytes of the mapped vectors; the system caches as many as fit."""
    work_bytes: int
    table_bytes: int
    index: IndexEstimate | None = None
    """None without FAISS, and for a small problem."""


def estimate(
    problem: Problem,
    search: str,
    vectors: Vectors | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Estimate:
    """Mine a piece in the same proportions, and scale the time of each step by its operations.

    `vectors` replace those of a problem that has none yet (`unknown_vectors`). `progress` counts the pieces that are
    mined: a small one to warm up, and the one that is timed.
    """
    backend, why = ONE_PASS, "a tile serves both directions"
    if search != "auto":
        backend, why = choose_backend(search), "as asked"
    images, captions = vectors or (problem.images, problem.captions)
    images, captions = images[:PIECE_IMAGES], captions[:PIECE_CAPTIONS]
    piece, timed = piece_of(problem, images, captions), replace(backend if backend.costs else ONE_PASS, is_small=never)
    progress(0, PIECES)
    _mine(piece_of(problem, images[:WARM_UP], captions[:WARM_UP]), timed)
    progress(1, PIECES)
    seconds, table_bytes = _mine(piece, timed)
    progress(PIECES, PIECES)
    costs, measured, dimensions = _costs(problem, timed), _costs(piece, timed), images.shape[1]
    exact: Mapping[str, float] = {step: seconds[step] * cost / measured[step] for step, cost in costs.items()}
    sizes, index = [problem.size(direction) for direction in problem.directions], None
    if has_faiss() and len(problem.images) * len(problem.captions) >= LEAST_PAIRS:
        by_rows = exact[LOOKING] + exact[WRITING]
        rates = measure_rates(dimensions, max(size.wanted for size in sizes))
        index = estimate_index(problem, sum(exact.values()) - by_rows, by_rows, rates)
    if not backend.costs:  # of all indexes, only the steps of one of cells are known
        known = index.seconds if backend.name == "ivf" and index else {}
        exact = known and {LOOKING: exact[LOOKING], **known, WRITING: exact[WRITING]}
    shape = {"images": len(problem.images), "captions": len(problem.captions), "dimensions": dimensions}
    shape |= {"most_captions": problem.size("i2t").wanted - problem.h_captions}
    return Estimate(
        {**shape, "h_captions": problem.h_captions, "h_images": problem.h_images},
        backend.name,
        why,
        sum(backend.costs(problem).values()) if backend.costs else None,
        exact,
        problem.memory,
        int(4 * dimensions * costs[LOOKING]),
        int(backend.work_bytes(problem)),
        int(table_bytes * (costs[WRITING] / measured[WRITING])),
        index,
    )


def unknown_vectors(images: int, captions: int, dimensions: int) -> tuple[Vectors, Vectors]:
    """Make vectors that take no memory, for a problem's shape, and random unit vectors for a piece of it."""
    rng, zero = np.random.default_rng(0), np.float32(0)

    def unit(count: int) -> Float32[np.ndarray, "_ D"]:
        drawn = rng.standard_normal((count, dimensions), dtype=np.float32)
        return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)

    whole = np.broadcast_to(zero, (images, dimensions)), np.broadcast_to(zero, (captions, dimensions))
    return whole, (unit(min(images, PIECE_IMAGES)), unit(min(captions, PIECE_CAPTIONS)))


def _mine(problem: Problem, backend: Backend) -> tuple[dict[str, float], int]:
    """Mine the problem; return the seconds of each step, reading and writing included, and the table's bytes."""
    log, ends = logging.getLogger("aoq.pipeline.search"), np.cumsum([len(step) for step in backend.plan(problem)])
    level, times = log.level, [time.perf_counter()]
    for vectors in (problem.images, problem.captions)[: 2 - problem.one_set]:
        sha256(vectors.tobytes())
        norms_of(vectors, "")
    times.append(time.perf_counter())

    def progress(done: int, total: int) -> None:
        if done in ends:
            times.append(time.perf_counter())

    with TemporaryDirectory() as temporary:
        work, output = Path(temporary) / "work", Path(temporary) / "table"
        log.setLevel(logging.WARNING)  # messages about a piece would be taken for messages about the whole
        try:
            mine(problem, search=backend, provenance={}, work=work, output=output, recall_floor=0.0, progress=progress)
        finally:
            log.setLevel(level)
        times.append(time.perf_counter())
        written = sum((output / f"{direction}.parquet").stat().st_size for direction in problem.directions)
    return dict(zip(_costs(problem, backend), np.diff(times).tolist(), strict=False)), written


def _costs(problem: Problem, backend: Backend) -> dict[str, float]:
    """Return what each step's time is proportional to: vectors, the search's operations, the lists' entries.

    Steps of a direction that is left out have no operations and are dropped.
    """
    operations = {step: cost for step, cost in (backend.costs(problem) if backend.costs else {}).items() if cost}
    vectors = float(len(problem.images) + (0 if problem.one_set else len(problem.captions)))
    return {LOOKING: vectors, **operations, WRITING: float(sum(s.anchors * s.h for s in map(problem.size, DIRECTIONS)))}


def estimate_index(problem: Problem, by_pairs: float, by_rows: float, rates: Rates) -> IndexEstimate:
    """Extrapolate an exact search, whose seconds are `by_pairs` and `by_rows` at the problem's size, and an index."""
    dimensions, images = problem.images.shape[1], len(problem.images)

    def at(factor: float) -> tuple[Scale, list[Step]]:
        sizes = [
            size._replace(anchors=round(size.anchors * factor), candidates=round(size.candidates * factor))
            for size in map(problem.size, problem.directions)
        ]
        steps = [step for size in sizes for step in index_steps(size, dimensions, rates)]
        indexes = [(size.candidates, Sizes.of(ivf(size.candidates), size.candidates, dimensions)) for size in sizes]
        return Scale(
            round(factor * images),
            round(factor * len(problem.captions)),
            by_pairs * factor**2 + by_rows * factor,
            sum(step.seconds for step in steps),
            sum(count * index.vector_bytes for count, index in indexes),
            max(index.memory for _, index in indexes),
        ), steps

    asked, steps = at(1.0)
    return IndexEstimate(
        asked,
        [at(size / images)[0] for size in SIZES if size > images],
        int(images * 2 * DAY / (by_rows + math.sqrt(by_rows**2 + 4 * by_pairs * DAY))),
        [str(step) for step in at(max(*SIZES, images) / images)[1]],
        {name: sum(step.seconds for step in steps if step.name == name) for name, *_ in steps},
    )


class Step(NamedTuple):
    """A step of an index, which takes the product of its factors, divided by a rate."""

    name: str
    factors: Mapping[str, int | float]
    rate: float

    @property
    def seconds(self) -> float:
        return math.prod(self.factors.values()) / self.rate

    def __str__(self) -> str:
        product = " x ".join(f"{count:,.0f} {what}" for what, count in self.factors.items())
        return f"{self.name}: {product} = {math.prod(self.factors.values()):.3g}, at {self.rate:.3g} a second"


def index_steps(size: Size, dimensions: int, rates: Rates) -> list[Step]:
    """Return the steps of an index of cells for one direction."""
    anchors, vectors, cells = size.anchors, size.candidates, ivf(size.candidates).widest
    sampled = min(anchors, TUNED_ON) + min(anchors, SAMPLED)
    each = {"dimensions": dimensions}
    trained = {"rounds": ROUNDS, "vectors": min(vectors, PER_CELL * cells), "cells": cells, **each}
    looked = {"anchors": anchors, "cells looked at": min(BREADTH, cells), "vectors a cell": vectors / cells}
    return [
        Step("training cells", trained, rates.multiplied),
        Step("filling cells", {"vectors": vectors, "cells": cells, **each}, rates.multiplied),
        Step("searching samples exactly", {"anchors": sampled, "vectors": vectors, **each}, rates.multiplied),
        Step("choosing cells", {"anchors": anchors, "cells": cells, **each}, rates.multiplied),
        Step("scanning cells", looked, rates.scanned),
        Step("scoring exactly", {"anchors": anchors, "candidates": candidates_asked(size.wanted)}, rates.scored),
    ]


def measure_rates(dimensions: int, wanted: int) -> Rates:
    """Time products, scans and exact scores of random vectors, the faster of two runs; this takes about a second."""
    faiss, rng = load_faiss(), np.random.default_rng(0)
    vectors = rng.standard_normal((PROBED, dimensions), dtype=np.float32)
    anchors, k = vectors[:PROBED_ANCHORS], min(candidates_asked(wanted), PROBED)
    index = faiss.index_factory(dimensions, "IVF1,SQ8", faiss.METRIC_INNER_PRODUCT)
    index.train(vectors)
    index.add(vectors)
    offsets = np.arange(len(anchors) + 1) * k
    ids = rng.integers(0, PROBED, offsets[-1])
    exact_scores(anchors[:1], vectors, offsets[:2], ids[:k])  # compiles
    work: list[tuple[int, Callable[[], object]]] = [
        (vectors.size * len(anchors), lambda: faiss.knn(vectors, anchors, 1)),
        (len(anchors) * PROBED, lambda: index.search(anchors, k)),
        (len(ids), lambda: exact_scores(anchors, vectors, offsets, ids)),
    ]
    return Rates(*(count / min(repeat(turn, number=1, repeat=2)) for count, turn in work))
