"""A second or two of mining: each part of it timed on a few rows, to be scaled by counts."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from hashlib import sha256

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from aoq.pipeline.mining.shape import Shape
from aoq.pipeline.search.brute_force import search
from aoq.pipeline.search.exact import SLACK
from aoq.pipeline.search.grouping import group
from aoq.pipeline.search.limits import sample_and_rank, sampled_limits
from aoq.pipeline.search.lists import lists_table
from aoq.pipeline.search.problem import Direction, Positives, Problem, Side
from aoq.pipeline.search.products.choice import Product, near_product
from aoq.pipeline.search.proposals import Proposals, heads
from aoq.pipeline.search.tiles import TILE_CAPTIONS, TILE_IMAGES, Keeper, TileKeeper
from aoq.pipeline.search.vectors import check_vectors
from aoq.pipeline.tables.files import list_writer
from aoq.pipeline.tables.writing import Summary

SECONDS = 0.2
"""Of repeating each part."""
POOL = 16_384
"""Vectors of either side that are looked at: more than a processor's caches hold."""
ROWS = 1024
"""Anchors of either side that get lists."""


def made_up(shape: Shape) -> Problem:
    """Random unit vectors, no more than the probe looks at."""
    rng = np.random.default_rng(0)
    sides = []
    for count in (shape.images, shape.captions):
        vectors = rng.standard_normal((min(count, POOL), shape.dimensions), dtype=np.float32)
        sides.append(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
    return pool_of(*sides)


def pool_of(images: np.ndarray, captions: np.ndarray) -> Problem:
    """The first vectors of both sides, without pairs."""
    images, captions = images[:POOL], captions[:POOL]
    return Problem(images, captions, np.full(len(captions), -1, np.int32), 1, 1)


def reading_seconds(shape: Shape, pool: Problem) -> float:
    """To look the vectors through: hashes, norms."""

    def look_through() -> None:
        for vectors in (pool.images, pool.captions):
            sha256(vectors.tobytes())
            check_vectors(vectors, "", unit=False)
        _ = Problem(pool.images, pool.captions, pool.positives, 1, 1).longest

    rows = len(pool.images) + len(pool.captions)
    return _timed(look_through) * (shape.images + shape.captions) / rows


def limits_seconds(shape: Shape, pool: Problem, direction: Direction) -> float:
    """To sample every anchor's limit."""
    (anchors, candidates), product = shape.counts(direction), near_product(pool)
    side = pool[direction].rows(np.arange(min(TILE_IMAGES, len(pool[direction].anchors))))
    sampled = sample_and_rank(len(side.candidates), side.wanted)[0]
    wanted = sample_and_rank(candidates, shape.wanted(direction))[0]
    return _timed(lambda: sampled_limits(side, product)) * anchors * wanted / (len(side.anchors) * sampled)


def tiles_seconds(shape: Shape, pool: Problem) -> float:
    """To compute all tiles, and to keep of them what is above limits like those of the whole."""
    images, captions, product = pool.images[:TILE_IMAGES], pool.captions[:TILE_CAPTIONS], near_product(pool)
    block = product.prepare(images)
    tile = product(block, product.prepare(captions)).copy()
    limits = [_limits_like(shape, tile, "i2t"), _limits_like(shape, tile.T, "t2i")]

    def one_tile() -> None:
        keeper = TileKeeper(*(Keeper(limit, len(images) + len(captions)) for limit in limits))
        product.scan(block, product.prepare(captions), 0, keeper)

    return _timed(one_tile) * shape.images * shape.captions / tile.size


def search_seconds(shape: Shape, pool: Problem, direction: Direction) -> float:
    """Of one direction by FAISS."""
    side, (anchors, candidates) = pool[direction], shape.counts(direction)
    rows, depth = side.anchors[:ROWS], min(shape.wanted(direction) + SLACK, len(side.candidates))
    once = _timed(lambda: search(rows, side.candidates, depth))
    return once * anchors * candidates / (len(rows) * len(side.candidates))


def lists_seconds_and_bytes(
    shape: Shape, pool: Problem, direction: Direction, *, one_pass: bool
) -> tuple[float, float]:
    """To score, sort and write the lists of one direction from the search's near scores, and the table's bytes."""
    whole, product = pool[direction], near_product(pool)
    rows = np.arange(min(ROWS, len(whole.anchors)))
    h = min(shape.h(direction), len(whole.candidates))
    none = Positives(np.empty(0, np.int32), np.zeros(len(rows) + 1, np.int64))
    side = Side(np.array(whole.anchors[rows]), whole.candidates, none, h, whole.longest)
    depth = shape.kept(direction) if one_pass else shape.wanted(direction) + SLACK
    proposed = _proposals(side, product, max(h, min(int(depth), len(whole.candidates))))
    size = 0

    def make() -> None:
        nonlocal size
        if one_pass and direction == "t2i":  # captions are merged from the files of all blocks of images
            _pass_on(proposed)
        size = _write(lists_table(side, heads(side, proposed), 0), h)

    share = shape.counts(direction)[0] / len(rows)
    return _timed(make) * share, size * share


def _limits_like(shape: Shape, tile: np.ndarray, direction: Direction) -> np.ndarray:
    """What lets as large a share of this tile's rows through as the real limits do of theirs."""
    share = shape.kept(direction) / shape.counts(direction)[1]
    rank = min(tile.shape[1], max(1, round(share * tile.shape[1])))
    return np.partition(tile, tile.shape[1] - rank, axis=1)[:, tile.shape[1] - rank].copy()


def _proposals(side: Side, product: Product, depth: int) -> Proposals:
    scores = product(product.prepare(side.anchors), product.prepare(side.candidates))
    ids = np.argpartition(-scores, depth - 1, axis=1)[:, :depth]
    near = np.take_along_axis(scores, ids, axis=1).astype(np.float32)
    offsets = np.arange(len(ids) + 1) * depth
    return Proposals(offsets, ids.ravel().astype(np.int32), near.ravel(), np.full(len(ids), -np.inf), product.error)


def _pass_on(proposed: Proposals) -> None:
    """As one step of the search hands near scores to the next."""
    columns = {"caption": proposed.ids, "image": proposed.ids, "score": proposed.scores}
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file, compression="none", use_dictionary=False, write_page_checksum=True)
    caption, *others = (column.to_numpy() for column in pq.read_table(file).columns)
    group(caption, int(caption.max()) + 1, *others)


def _write(lists: pa.Table, h: int) -> int:
    """To a shard, and from there to the table; how long the table's part is."""
    shard, table = io.BytesIO(), io.BytesIO()
    pq.write_table(lists, shard, compression="none", use_dictionary=False, write_page_checksum=True)
    group = pq.read_table(shard, page_checksum_verification=True)
    Summary().add(group)
    with list_writer(table, h, {}) as writer:
        writer.write_table(group.drop_columns("bound").cast(writer.schema))
    return table.tell()


def _timed(work: Callable[[], object]) -> float:
    """Seconds it takes, the first time left out: code is compiled then."""
    work()
    started, times = time.perf_counter(), 0
    while times == 0 or time.perf_counter() - started < SECONDS:
        work()
        times += 1
    return (time.perf_counter() - started) / times
