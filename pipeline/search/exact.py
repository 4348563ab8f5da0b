"""Backend onepass: exact lists of both directions from one pass over tiles of approximate products.

A sample gives each anchor a limit that its h best candidates, and few others, should reach. Blocks of images are then
compared with all captions, tile by tile; each pair that may reach a limit is scored exactly, once for both sides
(`scan.py`), and kept (`pool.py`). The candidates that a caption kept from each block are merged. An anchor that keeps
fewer than h is searched again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

import numpy as np
import pyarrow as pa
import torch
from jaxtyping import Integer
from threadpoolctl import threadpool_limits

from aoq.pipeline.engine import CHOOSE_CPU, products_in
from aoq.pipeline.search.arithmetic import TF32
from aoq.pipeline.search.device import append_keys
from aoq.pipeline.search.lists import NegativeLists, to_arrow
from aoq.pipeline.search.pool import KEY_BYTES, NO_CANDIDATE, Heads, Pool, make_keys, width_for
from aoq.pipeline.search.positives import group_offsets
from aoq.pipeline.search.problem import FIRST_DEVIATIONS, Direction, Problem, Side, blocks
from aoq.pipeline.search.scan import Scan
from aoq.pipeline.search.scores import score_pairs
from aoq.pipeline.search.units import Backend, Steps, Store, Unit, list_bytes, unit_name

logger = logging.getLogger(__name__)
_Result = TypeVar("_Result")

IMAGE_ROWS = 8192
"""Images per unit; a crash loses at most one unit."""
AGAIN = 6.0, None
"""Deviations (`FIRST_DEVIATIONS`) of further searches; the last starts without limits and certifies every list."""
LOST = ("cuda", "cublas", "hip error")
"""Words in the error messages of a device that failed."""


def on_device(side: Side, work: Callable[[Scan], _Result]) -> _Result:
    """Run `work` on the side's device; if memory runs out, run it again with smaller tiles.

    Raises:
        OSError: if the device fails, or has too little memory.
    """
    shrink = 1
    while True:
        try:
            with torch.no_grad(), threadpool_limits(1, "blas"):  # `multiply` runs its own threads
                if "scan" not in side.cache:
                    with products_in("float32"):
                        side.cache["scan"] = Scan.of(side, shrink)
                scan = side.cache["scan"]
                with products_in("tf32" if scan.how is TF32 else "float32"):
                    return work(scan)
        except torch.OutOfMemoryError:
            pass  # memory is freed when the handler ends
        except RuntimeError as error:
            side.cache.clear()
            if not any(word in str(error).lower() for word in LOST):
                raise
            raise OSError(
                f"{side.device} failed during the search ({str(error).splitlines()[0]}); finished units are kept: run "
                f"again, or {CHOOSE_CPU}."
            ) from error
        side.cache.clear()
        shrink *= 2
        logger.warning("%s ran out of memory; continuing with tiles of half the size", side.device)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def certify(heads: Heads, side: Side, scan: Scan, searches: Sequence[float | None] = AGAIN) -> Heads:
    """Search anchors whose lists are not certified again, first with lower limits, then without limits."""
    for deviations in searches:
        rows = np.flatnonzero(~heads.certified)
        most = max(1, side.memory // 4 // (KEY_BYTES * width_for(side.h, len(side.candidates))))
        for start, stop in blocks(len(rows), min(most, IMAGE_ROWS)):
            some = side.rows(again := rows[start:stop])
            if deviations is None:
                limits = torch.full((stop - start,), -torch.inf, dtype=torch.float32, device=scan.device)
            else:
                limits = scan.limits(some, deviations)
            pool = Pool.empty(limits, side.h, len(side.candidates))
            for _ in scan.sweep(some, pool):
                pass
            found = Heads.of(pool.keys, pool.limits, side.h)
            heads.ids[again], heads.scores[again], heads.bound[again] = found.ids, found.scores, found.bound
    return heads


def exact_heads(side: Side) -> Heads:
    """Find the h best negatives of every anchor, all certified."""
    heads = rescored(side, np.empty((len(side.anchors), 0), np.int64))
    return on_device(side, lambda scan: certify(heads, side, scan, (FIRST_DEVIATIONS, *AGAIN)))


def rescored(side: Side, ids: Integer[np.ndarray, "anchors k"]) -> Heads:
    """Score and sort the candidates proposed for each anchor (-1: none); no bound is known for the others."""
    rows, places = np.nonzero(ids >= 0)
    candidates = ids[rows, places].astype(np.int64)
    scores = score_pairs(side.anchors, side.candidates, (side.anchor_norms, side.candidate_norms), (rows, candidates))
    keys = torch.full(ids.shape, NO_CANDIDATE, dtype=torch.int64)
    keys.numpy()[rows, places] = make_keys(torch.from_numpy(candidates), torch.from_numpy(scores)).numpy()
    own = np.repeat(np.arange(len(ids)), np.diff(side.positives.offsets)) << 32 | side.positives.ids
    is_own = np.isin(rows << 32 | candidates, own)
    keys.numpy()[rows[is_own], places[is_own]] = NO_CANDIDATE
    if ids.shape[1] < side.h:
        keys = torch.nn.functional.pad(keys, (0, side.h - ids.shape[1]), value=NO_CANDIDATE)
    best = Heads.of(keys, torch.full((len(ids),), torch.inf, dtype=torch.float32), side.h)
    return replace(best, bound=np.full(len(ids), np.inf, np.float32))


def lists_table(side: Side, heads: Heads, first_anchor: int) -> pa.Table:
    """Make the rows of a table, with bounds, for consecutive anchors."""
    anchors, own = np.arange(len(side.anchors)), side.positives
    own = own.without(first_anchor + anchors) if side.one_set else own
    pairs = np.repeat(anchors, np.diff(own.offsets)), own.ids.astype(np.int64)
    scores = score_pairs(side.anchors, side.candidates, (side.anchor_norms, side.candidate_norms), pairs)
    return to_arrow(NegativeLists(heads.ids, heads.scores, own.lowest(scores), bound=heads.bound), first_anchor)


def _one_pass_steps(problem: Problem) -> Steps[Problem]:
    """Plan the limits of both sides, then the blocks of images, then the lists of captions."""
    images, captions = _image_rows(problem), []
    if "t2i" in problem.directions:
        each = KEY_BYTES * problem.h_images * len(images)
        captions = blocks(len(problem.captions), max(1, problem.memory // 4 // each))
    return [
        [Unit((f"limits-{d}",), partial(_limits, d)) for d in problem.directions],
        [Unit(tuple(_scanned(d, *rows) for d in problem.directions), partial(_scan, *rows)) for rows in images],
        [Unit((unit_name("t2i", *rows),), partial(_merge, *rows)) for rows in captions],
    ]


def _image_rows(problem: Problem) -> list[tuple[int, int]]:
    """Divide the images into blocks that fit into memory with all the pairs that are kept."""
    each = 16 * problem.images.shape[1]
    if "i2t" in problem.directions:
        each += KEY_BYTES * width_for(problem.h_captions, len(problem.captions))
    if "t2i" in problem.directions:
        each += int(KEY_BYTES * len(problem.captions) * problem.size("t2i").kept_share)
    return blocks(len(problem.images), max(1, min(IMAGE_ROWS, problem.memory // 4 // each)))


def _scanned(direction: Direction, start: int, stop: int) -> str:
    return unit_name("i2t" if direction == "i2t" else "kept", start, stop)


def _limits(direction: Direction, problem: Problem, store: Store) -> list[pa.Table]:
    limits = on_device(problem["i2t"], lambda scan: scan.limits(problem[direction]).cpu().numpy())
    return [pa.table({"limit": limits})]


def _scan(start: int, stop: int, problem: Problem, store: Store) -> list[pa.Table]:
    """Find the lists of a block of images, and the images of this block that each caption keeps."""
    side, h = problem["i2t"].rows(slice(start, stop)), problem.h_images

    def work(scan: Scan) -> list[pa.Table]:
        read = {direction: store.read(f"limits-{direction}")["limit"].to_numpy() for direction in problem.directions}
        limits = {direction: torch.tensor(each, device=scan.device) for direction, each in read.items()}
        pool = Pool.empty(limits["i2t"][start:stop], side.h, len(side.candidates)) if "i2t" in limits else None
        sweep = scan.sweep(side, pool, limits.get("t2i"), h, start)
        others = [_pool_table(each) for each in sweep if each is not None]
        tables = []
        if pool is not None:
            heads = Heads.of(pool.keys, pool.limits, side.h)
            _log_second_search(heads, side)
            tables.append(lists_table(side, certify(heads, side, scan), start))
        return [*tables, pa.concat_tables(others)] if others else tables

    return on_device(problem["i2t"], work)


def _pool_table(pool: Pool) -> pa.Table:
    """Make a table with the limit and up to h keys of each caption."""
    pool.trim()
    is_key = torch.arange(pool.keys.shape[1], device=pool.keys.device) < pool.counts[:, None]
    offsets = group_offsets(pool.counts.cpu().numpy()).astype(np.int32)
    keys = pa.ListArray.from_arrays(offsets, pool.keys[is_key].cpu().numpy())
    return pa.table({"limit": pool.limits.cpu().numpy(), "keys": keys})


def _merge(start: int, stop: int, problem: Problem, store: Store) -> list[pa.Table]:
    """Merge the keys that captions kept from every block of images into lists."""
    tables = [store.read(_scanned("t2i", *rows)).slice(start, stop - start) for rows in _image_rows(problem)]
    side = problem["t2i"].rows(slice(start, stop))
    limits = np.max([table["limit"].to_numpy() for table in tables], axis=0)
    columns = [table["keys"].combine_chunks() for table in tables]
    counts = [column.value_lengths().to_numpy() for column in columns]
    keys = torch.full((stop - start, max(side.h, int(np.sum(counts, axis=0).max()))), NO_CANDIDATE)
    filled = torch.zeros(stop - start, dtype=torch.int64)
    for column, count in zip(columns, counts, strict=True):
        captions = torch.from_numpy(np.repeat(np.arange(stop - start), count))
        append_keys(keys, filled, captions, torch.tensor(column.flatten().to_numpy()))
    heads = Heads.of(keys, torch.from_numpy(limits), side.h)
    _log_second_search(heads, side)
    if not heads.certified.all():
        heads = on_device(side, lambda scan: certify(heads, side, scan))
    return [lists_table(side, heads, start)]


def _log_second_search(heads: Heads, side: Side) -> None:
    if count := int((~heads.certified).sum()):
        logger.info("%d of %d rows need a second exact search", count, len(side.anchors))


def _one_pass_costs(problem: Problem) -> Mapping[str, float]:
    each, sizes = 2.0 * problem.images.shape[1], list(map(problem.size, problem.directions))
    sampled = sum(size.anchors * size.sample()[0] for size in sizes)
    scored = len(problem.images) * len(problem.captions) * (1 + sum(size.kept_share for size in sizes))
    return {
        "limits from samples": each * sampled,
        "tiles and lists of images": each * scored,
        "lists of captions": _passed(problem),  # sorting dominates
    }


def _work_bytes(problem: Problem) -> float:
    limits = problem.size("t2i").anchors * len(_image_rows(problem)) * ("t2i" in problem.directions)
    return list_bytes(problem) + KEY_BYTES * (_passed(problem) + limits)


def _passed(problem: Problem) -> float:
    """Count the candidates that captions keep until they are merged."""
    size, rows = problem.size("t2i"), [stop - start for start, stop in _image_rows(problem)]
    return float(size.anchors * sum(min(size.h, size.kept_share * count) for count in rows)) if size.h else 0.0


ONE_PASS = Backend(
    "onepass",
    "exact, both directions from one pass over tiles of similarities, on a GPU or the CPU",
    _one_pass_steps,
    costs=_one_pass_costs,
    work_bytes=_work_bytes,
)
