"""Estimate what an index of cells (`ivf`) takes, and the size from which an exact search takes more than a day.

Each step is a product of counts, divided by a rate that is measured on this machine. An exact search grows as the
pairs do, an index as N^1.5: each of N anchors looks at `BREADTH` cells of N / C vectors, C being about 4 sqrt(N).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from aoq.pipeline.search.brute_force import load_faiss
from aoq.pipeline.search.indexes.asking import candidates_asked
from aoq.pipeline.search.indexes.backend import SAMPLED, TUNED_ON
from aoq.pipeline.search.indexes.building import PER_CELL, memory_needed, vector_bytes
from aoq.pipeline.search.indexes.recipe import ivf
from aoq.pipeline.search.problem import Problem, Size
from aoq.pipeline.search.scores import exact_scores

DAY = 86_400.0
BREADTH = 64
"""Cells that an anchor looks at, before a run has measured how many the recall needs."""
ROUNDS = 10
"""Of k-means, by FAISS."""
SIZES = 1_000_000, 10_000_000, 50_000_000
PROBED, PROBED_ANCHORS = 8192, 512
"""Random vectors by which rates are measured."""


@dataclass(frozen=True)
class Rates:
    """Rates of this machine, per second."""

    multiplied: float
    """Multiply-adds of float32 products."""
    scanned: float
    """8-bit codes compared with an anchor."""
    scored: float
    """Pairs scored exactly."""


@dataclass(frozen=True)
class Step:
    """Seconds of a step: the product of its factors, divided by a rate."""

    name: str
    factors: Mapping[str, int | float]
    rate: float

    @property
    def seconds(self) -> float:
        return math.prod(self.factors.values()) / self.rate

    def __str__(self) -> str:
        product = " x ".join(f"{count:,.0f} {what}" for what, count in self.factors.items())
        return f"{self.name}: {product} = {math.prod(self.factors.values()):.3g}, at {self.rate:.3g} a second"


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
    asked: Scale
    larger: Sequence[Scale]
    """The same shape at `SIZES` images."""
    affordable_images: int
    """The most images, in the same shape, that an exact search takes a day for."""
    arithmetic: Sequence[str]
    """The steps of an index at the largest size, one line each, of both directions."""
    seconds: Mapping[str, float]
    """Steps of an index at the size that is asked for."""


def estimate_index(problem: Problem, by_pairs: float, by_rows: float, rates: Rates) -> IndexEstimate:
    """Extrapolate the seconds of an exact search, that grow as the pairs and as the rows do, and those of an index."""
    dimensions, images = problem.images.shape[1], len(problem.images)
    sizes = [problem.size(direction) for direction in problem.directions]

    def at(factor: float) -> Scale:
        larger = [scaled(size, factor) for size in sizes]
        seconds = sum(step.seconds for step in steps(larger, dimensions, rates))
        recipes = {size.candidates: ivf(size.candidates) for size in larger}
        kept = sum(size.candidates * vector_bytes(recipes[size.candidates], dimensions) for size in larger)
        building = max(memory_needed(recipe, count, dimensions) for count, recipe in recipes.items())
        rows = round(factor * images), round(factor * len(problem.captions))
        return Scale(*rows, by_pairs * factor**2 + by_rows * factor, seconds, kept, building)

    most = max(*SIZES, images) / images
    named: dict[str, float] = {}
    for step in steps(sizes, dimensions, rates):
        named[step.name] = named.get(step.name, 0.0) + step.seconds
    return IndexEstimate(
        at(1.0),
        [at(size / images) for size in SIZES if size > images],
        int(images * _root(by_pairs, by_rows, DAY)),
        [str(step) for step in steps([scaled(size, most) for size in sizes], dimensions, rates)],
        named,
    )


def _root(square: float, linear: float, total: float) -> float:
    """Positive x with square x² + linear x = total."""
    return 2 * total / (linear + math.sqrt(linear**2 + 4 * square * total))


def scaled(size: Size, factor: float) -> Size:
    """The same direction with more anchors and candidates."""
    return size._replace(anchors=round(size.anchors * factor), candidates=round(size.candidates * factor))


def steps(sizes: Sequence[Size], dimensions: int, rates: Rates) -> list[Step]:
    """Steps of all directions, those of a direction together."""
    return [step for size in sizes for step in _steps(size, dimensions, rates)]


def _steps(size: Size, dimensions: int, rates: Rates) -> list[Step]:
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
    """Time products, scans and exact scores of random vectors; a second or so."""
    faiss, rng = load_faiss(), np.random.default_rng(0)
    vectors = rng.standard_normal((PROBED, dimensions), dtype=np.float32)
    anchors, k = vectors[:PROBED_ANCHORS], min(candidates_asked(wanted), PROBED)
    index = faiss.index_factory(dimensions, "IVF1,SQ8", faiss.METRIC_INNER_PRODUCT)
    index.train(vectors)
    index.add(vectors)
    offsets = np.arange(len(anchors) + 1) * k
    ids = rng.integers(0, PROBED, offsets[-1])
    exact_scores(anchors[:1], vectors, offsets[:2], ids[:k])  # compiles
    return Rates(
        vectors.size * len(anchors) / _seconds(lambda: faiss.knn(vectors, anchors, 1)),
        len(anchors) * PROBED / _seconds(lambda: index.search(anchors, k)),
        len(ids) / _seconds(lambda: exact_scores(anchors, vectors, offsets, ids)),
    )


def _seconds(work: Callable[[], object]) -> float:
    """The faster of two turns."""
    times = []
    for _ in range(2):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times)
