"""Backend onepass on a device: the steps, tables and certificates of `search.onepass`, computed there by torch.

Candidates stay on the device from the product to the exact score. Anchors whose lists are not proven are searched again
as on a CPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import pyarrow as pa
import torch
from jaxtyping import Float32
from torch import Tensor

from aoq.pipeline.search.device.limits import limits_of, sample_and_rank
from aoq.pipeline.search.device.loaded import Loaded, Where, on_device
from aoq.pipeline.search.device.rescoring import device_heads
from aoq.pipeline.search.device.room import IMAGES
from aoq.pipeline.search.device.scan import GROUP, Keeper, Pairs, scan_tile
from aoq.pipeline.search.exact import PROPOSAL_BYTES, certify, lists_table
from aoq.pipeline.search.problem import Direction, Problem, blocks
from aoq.pipeline.search.store import Store
from aoq.pipeline.search.tiles import SPARE, TOO_MANY
from aoq.pipeline.search.units import Steps, Unit, list_bytes, unit_name

KEPT_BYTES = 12  # per pair that waits for the merge: caption, image, near score
Work = Callable[[Problem, Store, Loaded], Sequence[pa.Table]]


def device_steps(where: Where, problem: Problem) -> Steps[Problem]:
    """Plan limits, blocks of images and blocks of captions; the same units whatever the memory has room for."""

    def unit(outputs: Sequence[str], work: Work) -> Unit[Problem]:
        return Unit(tuple(outputs), partial(_run, work, where))

    captions: list[tuple[int, int]] = []
    if "t2i" in problem.directions:
        most = max(1, problem.memory // (PROPOSAL_BYTES * TOO_MANY * problem.size("t2i").wanted))
        captions = blocks(len(problem.captions), most)
    return [
        [unit([_limits_name(d, where)], partial(_limits, d)) for d in problem.directions],
        [
            unit([_scanned_name(d, *rows, where) for d in problem.directions], partial(_scan, *rows, where))
            for rows in blocks(len(problem.images), IMAGES)
        ],
        [unit([unit_name("t2i", *rows)], partial(_merge, *rows, where)) for rows in captions],
    ]


def _run(work: Work, where: Where, problem: Problem, store: Store) -> Sequence[pa.Table]:
    return on_device(partial(work, problem, store), where, problem, store)


def _limits_name(direction: Direction, where: Where) -> str:
    """Near scores of one arithmetic prove nothing about those of another: a run may go on without its device."""
    return f"limits-device-{where.precision}-{direction}"


def _scanned_name(direction: Direction, start: int, stop: int, where: Where) -> str:
    return unit_name("i2t" if direction == "i2t" else f"kept-device-{where.precision}", start, stop)


def _limits(direction: Direction, problem: Problem, store: Store, loaded: Loaded) -> list[pa.Table]:
    limits = limits_of(problem[direction], loaded[direction], loaded.tile, loaded.error)
    return [pa.table({"limit": limits.cpu().numpy()})]


def _read_limits(direction: Direction, where: Where, problem: Problem, store: Store) -> Float32[Tensor, " anchors"]:
    """Limits of a direction's anchors; those of one that is left out are infinite, and no score reaches them."""
    if direction not in problem.directions:
        return torch.full((problem.size(direction).anchors,), math.inf, device=where.device)
    return torch.tensor(store.read(_limits_name(direction, where))["limit"].to_numpy(), device=where.device)


def _scan(start: int, stop: int, where: Where, problem: Problem, store: Store, loaded: Loaded) -> list[pa.Table]:
    """Find the lists of some images, and what all captions keep of these images."""
    limits = _read_limits("i2t", where, problem, store)
    captions = Keeper(_read_limits("t2i", where, problem, store), TOO_MANY * problem.size("t2i").wanted)
    lists, kept = [], []
    for first, last in ((start + a, start + b) for a, b in blocks(stop - start, loaded.tile.images)):
        padded = torch.nn.functional.pad(limits[first:last], (0, -(last - first) % GROUP), value=math.inf)
        images = Keeper(padded, SPARE * TOO_MANY * problem.size("i2t").wanted)
        ranges = blocks(len(problem.captions), loaded.tile.captions)
        (block,) = loaded.images.rounded([(first, last)])
        for (caption, _), others in zip(ranges, loaded.captions.rounded(ranges), strict=True):
            scan_tile(block, others, first, caption, (images, captions))
        if "i2t" in problem.directions:
            lists.append(_lists("i2t", first, last, images.handed_over(), images.limits, problem, loaded))
        kept.append(_by_anchor(captions.handed_over()))
    made = [pa.concat_tables(lists)] if "i2t" in problem.directions else []
    return [*made, _kept(kept, captions.limits)] if "t2i" in problem.directions else made


def _by_anchor(pairs: Pairs) -> tuple[np.ndarray, ...]:
    order = pairs[0].argsort(stable=True)
    return tuple(column[order].cpu().numpy() for column in pairs)


def _kept(parts: Sequence[tuple[np.ndarray, ...]], limits: Float32[Tensor, " captions"]) -> pa.Table:
    """Collect the pairs that captions keep of a block of images; a caption that keeps too many scores infinitely."""
    caption, image, score = (np.concatenate(column) for column in zip(*parts, strict=True))
    if len(parts) > 1:
        order = np.argsort(caption, kind="stable")
        caption, image, score = caption[order], image[order], score[order]
    score[np.isinf(limits.cpu().numpy())[caption]] = np.inf
    return pa.table({"caption": caption, "image": image, "score": score})


def _merge(start: int, stop: int, where: Where, problem: Problem, store: Store, loaded: Loaded) -> list[pa.Table]:
    """Find the lists of some captions, from the candidates that they kept of every block of images."""
    names = [_scanned_name("t2i", *rows, where) for rows in blocks(len(problem.images), IMAGES)]
    limits = _read_limits("t2i", where, problem, store)
    most = max(1, loaded.rescoring // (PROPOSAL_BYTES * TOO_MANY * problem.size("t2i").wanted))
    lists = []
    for first, last in ((start + a, start + b) for a, b in blocks(stop - start, most)):
        parts = [store.read(name, within=("caption", first, last)) for name in names]
        columns = (column.to_numpy() for column in pa.concat_tables(parts).columns)
        caption, image, score = (torch.tensor(column, device=where.device) for column in columns)
        caption, is_kept, block = caption - first, score.isfinite(), limits[first:last].clone()
        block[caption[~is_kept].long()] = math.inf
        pairs = caption[is_kept], image[is_kept], score[is_kept]
        lists.append(_lists("t2i", first, last, pairs, block, problem, loaded))
    return [pa.concat_tables(lists)]


def _lists(
    direction: Direction,
    start: int,
    stop: int,
    pairs: Pairs,
    limits: Float32[Tensor, " padded"],
    problem: Problem,
    loaded: Loaded,
) -> pa.Table:
    side, rows = problem[direction].rows(np.arange(start, stop)), stop - start
    found = device_heads(side, loaded[direction], start, pairs, limits[:rows], loaded.error, loaded.rescoring)
    return lists_table(side, certify(found, side), start)


def device_costs(problem: Problem) -> Mapping[str, float]:
    """Floating-point operations of the steps (`Backend.costs`)."""
    sizes = map(problem.size, problem.directions)
    pairs = {
        "limits from samples": sum(size.anchors * sample_and_rank(size.candidates, size.wanted)[0] for size in sizes),
        "tiles and lists of images": len(problem.images) * len(problem.captions),
        "lists of captions": _kept_pairs(problem),
    }
    return {step: 2.0 * problem.images.shape[1] * count for step, count in pairs.items()}


def device_work_bytes(problem: Problem) -> float:
    """Bytes that the units write (`Backend.work_bytes`)."""
    return list_bytes(problem) + KEPT_BYTES * _kept_pairs(problem)


def _kept_pairs(problem: Problem) -> float:
    """Expected number of pairs above the captions' limits."""
    if "t2i" not in problem.directions:
        return 0.0
    size = problem.size("t2i")
    sampled, rank = sample_and_rank(size.candidates, size.wanted)
    return size.anchors * size.candidates * rank / sampled
