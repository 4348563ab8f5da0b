"""Choose the product that is fastest end to end, by measuring each on a sample of the problem's own vectors.

End to end, because a faster product with wider floors finds more pairs that must be scored exactly. The choice changes
no list, so a measurement that other work on the machine disturbed costs time alone.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float32

from aoq.pipeline.search.problem import DIRECTIONS, Direction, Problem
from aoq.pipeline.search.products.choice import able_precisions, near_product
from aoq.pipeline.search.products.product import Product
from aoq.pipeline.search.tiles import Keeper, TileKeeper

logger = logging.getLogger(__name__)

WORTH = 2e11  # products of two numbers; a smaller job ends sooner than a wrong choice costs much
IMAGES, CAPTIONS = 1024, 2048
TURNS = 3
FIRST = 2
"""Divides both sides of the sample for a first turn, after which those that are far behind are left out."""
BEHIND = 1.5

Share = Callable[[Direction], float]
"""Fraction of a direction's candidates that an anchor is expected to keep."""


def choose_product(problem: Problem, share: Share) -> Product:
    """Choose the precision by measurement, or in a small job the one that the processor has units for."""
    if len(problem.images) * len(problem.captions) * problem.images.shape[1] < WORTH:
        return near_product(problem)
    products = [near_product(problem, precision) for precision in able_precisions(problem.images.shape[1])]
    seconds = measure(problem, share, products)
    ranked = sorted(zip(seconds, products, strict=True), key=lambda each: each[0])
    measured = ", ".join(f"{product.precision} {1e3 * found:.0f} ms" for found, product in ranked if found < np.inf)
    _, fastest = ranked[0]
    logger.info("multiplying in %s; a sample of a tile took %s", fastest.precision, measured)
    return fastest


def measure(problem: Problem, share: Share, products: Sequence[Product]) -> list[float]:
    """Seconds that each product takes for a small tile of vectors from all over both sides; infinite if far behind."""
    images, captions = _sample(problem.images, IMAGES), _sample(problem.captions, CAPTIONS)
    limits = _limits(products[0], images, captions, problem, share)
    part = images[: IMAGES // FIRST], captions[: CAPTIONS // FIRST]
    first = [_seconds(product, *part, limits) for product in products]
    return [
        _seconds(product, images, captions, limits) if found <= BEHIND * min(first) else np.inf
        for product, found in zip(products, first, strict=True)
    ]


def _sample(vectors: Float32[np.ndarray, "items D"], most: int) -> Float32[np.ndarray, "some D"]:
    return np.ascontiguousarray(vectors[np.linspace(0, len(vectors) - 1, min(most, len(vectors)), dtype=np.int64)])


def _limits(
    product: Product,
    images: Float32[np.ndarray, "images D"],
    captions: Float32[np.ndarray, "captions D"],
    problem: Problem,
    share: Share,
) -> list[Float32[np.ndarray, " _"]]:
    """Limits that as large a fraction of the sample reaches as the search expects of all."""
    scores, found = product(product.prepare(images), product.prepare(captions)), []
    for direction, near in zip(DIRECTIONS, (scores, scores.T), strict=True):
        found.append(np.full(len(near), np.inf, np.float32))
        if direction in problem.directions:
            rank = min(near.shape[1], 1 + int(share(direction) * near.shape[1]))
            found[-1] = np.partition(near, -rank, axis=1)[:, -rank]
    return found


def _seconds(
    product: Product,
    images: Float32[np.ndarray, "images D"],
    captions: Float32[np.ndarray, "captions D"],
    limits: Sequence[Float32[np.ndarray, " _"]],
) -> float:
    ours, theirs = (Keeper(part[: len(side)], side.size) for part, side in zip(limits, (images, captions), strict=True))
    keeper = TileKeeper(product, images, ours, theirs, len(captions))
    keeper.take(captions, 0)  # compiles what it runs, and touches the memory that all tiles use
    seconds = []
    for _ in range(TURNS):
        started = time.perf_counter()
        keeper.take(captions, 0)
        seconds.append(time.perf_counter() - started)
    return min(seconds)  # other work only adds to it
