"""The one-pass backend's units: limits from samples, then blocks of images, then blocks of captions."""

from __future__ import annotations

from functools import partial

import numpy as np
import pyarrow as pa

from aoq.pipeline.search.exact import PROPOSAL_BYTES, mend
from aoq.pipeline.search.grouping import group
from aoq.pipeline.search.limits import sampled_limits
from aoq.pipeline.search.lists import lists_table
from aoq.pipeline.search.problem import DIRECTIONS, Direction, Problem, blocks
from aoq.pipeline.search.products.choice import Product, near_product
from aoq.pipeline.search.proposals import Proposals, heads
from aoq.pipeline.search.store import Store
from aoq.pipeline.search.tiles import SPARE, TILE_CAPTIONS, TILE_IMAGES, TOO_MANY, Keeper, TileKeeper
from aoq.pipeline.search.units import Steps, Unit, unit_name

GIVEN_UP = -1


def one_pass_steps(problem: Problem) -> Steps:
    product = near_product(problem)
    images = blocks(len(problem.images), TILE_IMAGES)
    most = max(1, problem.memory // (PROPOSAL_BYTES * TOO_MANY * max(1, problem["t2i"].wanted)))
    captions = blocks(len(problem.captions), most) if "t2i" in problem.directions else []
    limits = [
        Unit((_limits_name(direction, product),), partial(_limits, direction, product))
        for direction in problem.directions
    ]
    scans = [Unit(_scanned_names(*rows, product, problem), partial(_scan, *rows, product)) for rows in images]
    return [limits, scans, [Unit((unit_name("t2i", *rows),), partial(_merge, *rows, product)) for rows in captions]]


def _limits_name(direction: Direction, product: Product) -> str:
    """Near scores of one precision prove nothing about those of another: a run may go on on another machine."""
    return f"limits-{product.precision}-{direction}"


def _scanned_names(start: int, stop: int, product: Product, problem: Problem) -> tuple[str, ...]:
    names = {"i2t": unit_name("i2t", start, stop), "t2i": _kept_name(start, stop, product)}
    return tuple(names[direction] for direction in problem.directions)


def _kept_name(start: int, stop: int, product: Product) -> str:
    return unit_name(f"kept-{product.precision}", start, stop)


def _limits(direction: Direction, product: Product, problem: Problem, store: Store) -> list[pa.Table]:
    return [pa.table({"limit": sampled_limits(problem[direction], product)})]


def _scan(start: int, stop: int, product: Product, problem: Problem, store: Store) -> list[pa.Table]:
    """The lists of some images, and what all captions keep of these images."""
    side, t2i = problem["i2t"].rows(np.arange(start, stop)), problem["t2i"]
    limits = {d: np.full(len(problem[d].anchors), np.inf, np.float32) for d in DIRECTIONS}  # nothing reaches these
    for direction in problem.directions:
        limits[direction] = store.read(_limits_name(direction, product))["limit"].to_numpy()
    images = Keeper(limits["i2t"][start:stop], SPARE * TOO_MANY * side.wanted)
    captions = Keeper(limits["t2i"], TOO_MANY * t2i.wanted)
    block, keeper = product.prepare(side.anchors), TileKeeper(images, captions)
    for first, last in blocks(len(problem.captions), TILE_CAPTIONS):
        product.scan(block, product.prepare(problem.captions[first:last]), first, keeper)
    made = []
    if "i2t" in problem.directions:
        made.append(lists_table(side, mend(heads(side, images.proposals(product.error)), side), start))
    if "t2i" in problem.directions:
        made.append(_kept(captions, start))
    return made


def _kept(captions: Keeper, first_image: int) -> pa.Table:
    """The pairs that captions keep of a block of images; a caption that keeps too many is marked as given up."""
    offsets, images, scores = captions.kept()
    given_up = np.flatnonzero(np.isinf(captions.limits)).astype(np.int32)
    kept = {
        "caption": np.concatenate(
            [np.repeat(np.arange(len(captions.limits), dtype=np.int32), np.diff(offsets)), given_up]
        ),
        "image": np.concatenate([images + np.int32(first_image), np.full(len(given_up), GIVEN_UP, np.int32)]),
        "score": np.concatenate([scores, np.full(len(given_up), np.inf, np.float32)]),
    }
    order = np.argsort(kept["caption"], kind="stable")
    return pa.table({name: values[order] for name, values in kept.items()})


def _merge(start: int, stop: int, product: Product, problem: Problem, store: Store) -> list[pa.Table]:
    """The lists of some captions, from what they kept of every block of images."""
    side = problem["t2i"].rows(np.arange(start, stop))
    kept = [_kept_name(*rows, product) for rows in blocks(len(problem.images), TILE_IMAGES)]
    parts = [store.read(name, within=("caption", start, stop)) for name in kept]
    caption, image, score = (column.to_numpy() for column in pa.concat_tables(parts).columns)
    limits = store.read(_limits_name("t2i", product))["limit"].to_numpy()[start:stop].copy()
    limits[caption[image == GIVEN_UP] - start] = np.inf
    there = image != GIVEN_UP
    offsets, images, near = group(caption[there] - np.int32(start), stop - start, image[there], score[there])
    proposals = Proposals(offsets, images, near, limits.astype(np.float64) + product.error, product.error)
    found = mend(heads(side, proposals), side)
    return [lists_table(side, found, start)]
