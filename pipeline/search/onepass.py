"""Backend onepass: every tile of similarities is computed once, for both directions.

A random sample of the other side gives each anchor a limit that its h best candidates reach, and few others. Blocks of
images are then multiplied with all captions, tile by tile, and captions merge their candidates from every block.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
import pyarrow as pa

from aoq.pipeline.search.exact import PROPOSAL_BYTES, certify, lists_table
from aoq.pipeline.search.kept_pairs import merged_heads, pairs_table
from aoq.pipeline.search.problem import DIRECTIONS, Direction, Problem, blocks
from aoq.pipeline.search.products.measuring import choose_product
from aoq.pipeline.search.products.product import Product
from aoq.pipeline.search.scores import exact_scores
from aoq.pipeline.search.store import Store
from aoq.pipeline.search.threads import in_parallel
from aoq.pipeline.search.tiles import SPARE, TILE_CAPTIONS, TILE_IMAGES, TOO_MANY, Keeper, TileKeeper
from aoq.pipeline.search.units import Backend, Steps, Unit, list_bytes, unit_name

EXPECTED = 2.0, 6.0  # of an anchor's h best, one in 20 is expected in the sample, within these bounds
FEWEST_SAMPLED = 1024
DEVIATIONS = 2.5  # beyond what is expected: one limit in 160 is too high, and its anchor is searched again
SMALL = 2e11  # products of two numbers in a job of seconds; a crash may lose it
PASSED = 8  # of memory, what units of a small job pass on may take one part
KEPT_BYTES = 12  # per pair that waits for the merge: caption, image, score


def _is_small(problem: Problem) -> bool:
    """Tell whether a job takes seconds, and what passes from step to step little memory."""
    products = len(problem.images) * len(problem.captions) * problem.images.shape[1]
    return products <= SMALL and _passed_bytes(problem) <= problem.memory / PASSED


def _steps(problem: Problem) -> Steps[Problem]:
    product, captions = choose_product(problem, partial(_kept_share, problem)), []
    if "t2i" in problem.directions:
        most = max(1, problem.memory // (PROPOSAL_BYTES * TOO_MANY * problem.size("t2i").wanted))
        captions = blocks(len(problem.captions), most)
    scans = [
        Unit(tuple(_scanned_name(d, *rows) for d in problem.directions), partial(_scan, *rows, product))
        for rows in blocks(len(problem.images), TILE_IMAGES)
    ]
    return [
        [Unit((_limits_name(d),), partial(_limits, d, product)) for d in problem.directions],
        scans,
        [Unit((unit_name("t2i", *rows),), partial(_merge, *rows)) for rows in captions],
    ]


def _limits_name(direction: Direction) -> str:
    return f"limits-{direction}"


def _scanned_name(direction: Direction, start: int, stop: int) -> str:
    return unit_name("i2t" if direction == "i2t" else "pairs", start, stop)


def _limits(direction: Direction, product: Product, problem: Problem, store: Store) -> list[pa.Table]:
    """Choose for each anchor the score of a sampled candidate that more than h negatives, but not many, should reach.

    The scores are exact, so that a tie at rank h is kept as a whole.
    """
    side = problem[direction]
    count = len(side.candidates)
    size, rank = sample_and_rank(count, side.wanted)
    sampled = np.sort(np.random.default_rng(0).choice(count, size, replace=False))
    candidates = side.candidates[sampled]
    sample, chosen = product.prepare(candidates), np.empty(len(side.anchors), dtype=np.int32)
    for start, stop in blocks(len(chosen), max(1, TILE_IMAGES * TILE_CAPTIONS // size)):
        scores = product(product.prepare(side.anchors[start:stop]), sample)
        in_parallel(_nth_best, stop - start, scores, rank, chosen[start:])
    limits = exact_scores(side.anchors, candidates, np.arange(len(chosen) + 1), chosen)
    return [pa.table({"limit": limits})]


def sample_and_rank(count: int, wanted: int) -> tuple[int, int]:
    """Number of candidates to sample of `count`, and the rank among them of the score that becomes the limit."""
    size = min(count, max(FEWEST_SAMPLED, int(np.clip(wanted / 20, *EXPECTED) * count / wanted)))
    expected = size * wanted / count
    deviation = np.sqrt(expected * (1 - size / count))  # of the number of the `wanted` best among the sampled, at most
    return size, min(size, int(np.ceil(expected + DEVIATIONS * deviation + 1)))


def _nth_best(start: int, stop: int, scores: np.ndarray, rank: int, chosen: np.ndarray) -> None:
    place = scores.shape[1] - rank
    chosen[start:stop] = np.argpartition(scores[start:stop], place, axis=1)[:, place]


def _scan(start: int, stop: int, product: Product, problem: Problem, store: Store) -> list[pa.Table]:
    """Find the lists of some images, and what all captions keep of these images."""
    side = problem["i2t"].between(start, stop)
    limits = {d: np.full(problem.size(d).anchors, np.inf, np.float32) for d in DIRECTIONS}  # no score reaches these
    for direction in problem.directions:
        limits[direction] = store.read(_limits_name(direction))["limit"].to_numpy()
    images = Keeper(limits["i2t"][start:stop], SPARE * TOO_MANY * side.wanted)
    captions = Keeper(limits["t2i"], TOO_MANY * problem.size("t2i").wanted)
    keeper = TileKeeper(product, side.anchors, images, captions, TILE_CAPTIONS)
    for first, last in blocks(len(problem.captions), TILE_CAPTIONS):
        keeper.take(problem.captions[first:last], first)
    made = []
    if "i2t" in problem.directions:
        made.append(lists_table(side, certify(images.heads(side), side), start))
    if "t2i" in problem.directions:
        made.append(pairs_table(captions, start))
    return made


def _merge(start: int, stop: int, problem: Problem, store: Store) -> list[pa.Table]:
    """Find the lists of some captions, from the candidates that they kept of every block of images."""
    names = [_scanned_name("t2i", *rows) for rows in blocks(len(problem.images), TILE_IMAGES)]
    parts = [store.read(name, within=("caption", start, stop)) for name in names]
    side = problem["t2i"].between(start, stop)
    return [lists_table(side, certify(merged_heads(side, start, parts), side), start)]


def _costs(problem: Problem) -> Mapping[str, float]:
    sizes, each = map(problem.size, problem.directions), 2.0 * problem.images.shape[1]
    kept = sum(_kept_pairs(problem, direction) for direction in problem.directions)
    sampled = sum(size.anchors * sample_and_rank(size.candidates, size.wanted)[0] for size in sizes)
    return {
        "limits from samples": each * sampled,
        "tiles and lists of images": each * (len(problem.images) * len(problem.captions) + kept),
        "lists of captions": _kept_pairs(problem, "t2i"),  # these are sorted
    }


def _kept_pairs(problem: Problem, direction: Direction) -> float:
    """Expected number of pairs above the limits of a direction."""
    if direction not in problem.directions:
        return 0.0
    size = problem.size(direction)
    return size.anchors * size.candidates * _kept_share(problem, direction)


def _kept_share(problem: Problem, direction: Direction) -> float:
    size = problem.size(direction)
    sampled, rank = sample_and_rank(size.candidates, size.wanted)
    return rank / sampled


def _work_bytes(problem: Problem) -> float:
    return list_bytes(problem) if _is_small(problem) else _passed_bytes(problem)


def _passed_bytes(problem: Problem) -> float:
    limits = len(problem.captions) * -(-len(problem.images) // TILE_IMAGES) if "t2i" in problem.directions else 0
    return list_bytes(problem) + KEPT_BYTES * (_kept_pairs(problem, "t2i") + limits)


ONE_PASS = Backend(
    "onepass",
    "exact, both directions from one pass over tiles of similarities",
    _steps,
    costs=_costs,
    work_bytes=_work_bytes,
    is_small=_is_small,
)
