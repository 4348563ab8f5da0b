"""Backend onepass: every tile of similarities is computed once, for both directions.

A random sample of the other side gives each anchor a limit that its h best candidates reach, and few others. Blocks of
images are then multiplied with all captions, tile by tile, and captions merge their candidates from every block.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
import pyarrow as pa

from aoq.pipeline.search.exact import PROPOSAL_BYTES, certify
from aoq.pipeline.search.lists import lists_table
from aoq.pipeline.search.problem import DIRECTIONS, Direction, Problem, Side, blocks
from aoq.pipeline.search.products.choice import Product, near_product
from aoq.pipeline.search.proposals import heads
from aoq.pipeline.search.store import Store
from aoq.pipeline.search.threads import in_parallel
from aoq.pipeline.search.tiles import SPARE, TILE_CAPTIONS, TILE_IMAGES, TOO_MANY, Keeper, TileKeeper
from aoq.pipeline.search.units import Backend, Steps, Unit, list_bytes, unit_name

EXPECTED = 2.0, 6.0  # of an anchor's h best, one in 20 is expected in the sample, within these bounds
FEWEST_SAMPLED = 1024
DEVIATIONS = 2.5  # beyond what is expected: one limit in 160 is too high, and its anchor is searched again
KEPT_BYTES = 12  # per pair that waits for the merge: caption, image, near score


def one_pass_steps(problem: Problem) -> Steps[Problem]:
    product, captions = near_product(problem), []
    if "t2i" in problem.directions:
        most = max(1, problem.memory // (PROPOSAL_BYTES * TOO_MANY * problem.size("t2i").wanted))
        captions = blocks(len(problem.captions), most)
    scans = [
        Unit(tuple(_scanned_name(d, *rows, product) for d in problem.directions), partial(_scan, *rows, product))
        for rows in blocks(len(problem.images), TILE_IMAGES)
    ]
    return [
        [Unit((_limits_name(d, product),), partial(_limits, d, product)) for d in problem.directions],
        scans,
        [Unit((unit_name("t2i", *rows),), partial(_merge, *rows, product)) for rows in captions],
    ]


def _limits_name(direction: Direction, product: Product) -> str:
    """Near scores of one precision prove nothing about those of another: a run may go on on another machine."""
    return f"limits-{product.precision}-{direction}"


def _scanned_name(direction: Direction, start: int, stop: int, product: Product) -> str:
    return unit_name("i2t" if direction == "i2t" else f"kept-{product.precision}", start, stop)


def _limits(direction: Direction, product: Product, problem: Problem, store: Store) -> list[pa.Table]:
    """Estimate for each anchor a near score that more than h of its negatives, but not many times h, should reach."""
    side = problem[direction]
    count = len(side.candidates)
    size, rank = sample_and_rank(count, side.wanted)
    sampled = np.sort(np.random.default_rng(0).choice(count, size, replace=False))
    sample = product.prepare(side.candidates[sampled])
    limits = np.empty(len(side.anchors), dtype=np.float32)
    for start, stop in blocks(len(limits), max(1, TILE_IMAGES * TILE_CAPTIONS // size)):
        scores = product(product.prepare(side.anchors[start:stop]), sample)
        in_parallel(_nth_best, stop - start, scores, rank, limits[start:])
    limits -= np.float32(product.error)  # an h-th score this close to its limit would not clear the certificate's bound
    return [pa.table({"limit": limits})]


def sample_and_rank(count: int, wanted: int) -> tuple[int, int]:
    """Number of candidates to sample of `count`, and the rank among them of the score that becomes the limit."""
    size = min(count, max(FEWEST_SAMPLED, int(np.clip(wanted / 20, *EXPECTED) * count / wanted)))
    expected = size * wanted / count
    return size, min(size, int(np.ceil(expected + DEVIATIONS * np.sqrt(expected) + 1)))


def _nth_best(start: int, stop: int, scores: np.ndarray, rank: int, limits: np.ndarray) -> None:
    place = scores.shape[1] - rank
    limits[start:stop] = np.partition(scores[start:stop], place, axis=1)[:, place]


def _scan(start: int, stop: int, product: Product, problem: Problem, store: Store) -> list[pa.Table]:
    """Find the lists of some images, and what all captions keep of these images."""
    side = problem["i2t"].rows(np.arange(start, stop))
    limits = {d: np.full(problem.size(d).anchors, np.inf, np.float32) for d in DIRECTIONS}  # no score reaches these
    for direction in problem.directions:
        limits[direction] = store.read(_limits_name(direction, product))["limit"].to_numpy()
    images = Keeper(limits["i2t"][start:stop], SPARE * TOO_MANY * side.wanted)
    captions = Keeper(limits["t2i"], TOO_MANY * problem.size("t2i").wanted)
    block, keeper = product.prepare(side.anchors), TileKeeper(images, captions, TILE_CAPTIONS)
    for first, last in blocks(len(problem.captions), TILE_CAPTIONS):
        keeper.take(product.scan(block, product.prepare(problem.captions[first:last])), first, last)
    made = []
    if "i2t" in problem.directions:
        made.append(_lists(side, images, product, start))
    if "t2i" in problem.directions:
        made.append(_kept(captions, start))
    return made


def _kept(captions: Keeper, first_image: int) -> pa.Table:
    """Collect the pairs that captions keep of a block of images; a caption that keeps too many scores infinitely."""
    offsets, images, scores = captions.kept()
    caption = np.repeat(np.arange(len(captions.limits), dtype=np.int32), np.diff(offsets))
    scores[np.isinf(captions.limits)[caption]] = np.inf
    return pa.table({"caption": caption, "image": images + np.int32(first_image), "score": scores})


def _merge(start: int, stop: int, product: Product, problem: Problem, store: Store) -> list[pa.Table]:
    """Find the lists of some captions, from the candidates that they kept of every block of images."""
    names = [_scanned_name("t2i", *rows, product) for rows in blocks(len(problem.images), TILE_IMAGES)]
    parts = [store.read(name, within=("caption", start, stop)) for name in names]
    caption, image, score = (column.to_numpy() for column in pa.concat_tables(parts).columns)
    there, caption = np.isfinite(score), caption - np.int32(start)
    keeper = Keeper(store.read(_limits_name("t2i", product))["limit"].to_numpy()[start:stop], len(problem.images))
    keeper.limits[caption[~there]] = np.inf
    keeper.add(caption[there], image[there], score[there])
    return [_lists(problem["t2i"].rows(np.arange(start, stop)), keeper, product, start)]


def _lists(side: Side, keeper: Keeper, product: Product, first_anchor: int) -> pa.Table:
    return lists_table(side, certify(heads(side, keeper.proposals(product.error)), side), first_anchor)


def _costs(problem: Problem) -> Mapping[str, float]:
    sizes = map(problem.size, problem.directions)
    pairs = {
        "limits from samples": sum(size.anchors * sample_and_rank(size.candidates, size.wanted)[0] for size in sizes),
        "tiles and lists of images": len(problem.images) * len(problem.captions),
        "lists of captions": _kept_pairs(problem),
    }
    return {step: 2.0 * problem.images.shape[1] * count for step, count in pairs.items()}


def _kept_pairs(problem: Problem) -> float:
    """Expected number of pairs above the captions' limits."""
    if "t2i" not in problem.directions:
        return 0.0
    size = problem.size("t2i")
    sampled, rank = sample_and_rank(size.candidates, size.wanted)
    return size.anchors * size.candidates * rank / sampled


ONE_PASS = Backend(
    "onepass",
    "exact, both directions from one pass over tiles of similarities",
    one_pass_steps,
    costs=_costs,
    work_bytes=lambda problem: list_bytes(problem) + KEPT_BYTES * _kept_pairs(problem),
)
