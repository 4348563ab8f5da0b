"""Exact scores and heads of lists on a device, by the rule of `scores.py` and `proposals.py`."""

from __future__ import annotations

import math

import numpy as np
import torch
from jaxtyping import Bool, Float32, Float64, Int64
from torch import Tensor

from aoq.pipeline.search.device.scan import Pairs
from aoq.pipeline.search.device.vectors import Vectors
from aoq.pipeline.search.positives import Positives
from aoq.pipeline.search.problem import LAST_BITS, Side
from aoq.pipeline.search.proposals import Heads
from aoq.pipeline.search.scores import exact_scores

PAIR_ENTRY_BYTES = 32  # of a rescored pair, for each dimension: both vectors, one in float64, and their products


def device_heads(
    side: Side,
    vectors: tuple[Vectors, Vectors],
    first_anchor: int,
    pairs: Pairs,
    limits: Float32[Tensor, " anchors"],
    error: float,
    room: int,
) -> Heads:
    """Rescore exactly all that may be among the h best, and keep the best of these (`proposals.heads`).

    `vectors` are all anchors and all candidates, of which the side's anchors start at `first_anchor`; `pairs` number
    the side's anchors from 0. `room` is the bytes to rescore in.

    Raises:
        OSError: if a near score is further from the exact one than `error`.
    """
    rows, h = len(side.anchors), side.h
    anchors, ids, near = (column[~_is_own(*pairs[:2], side.positives)] for column in pairs)
    order = _falling(anchors, near).argsort()
    anchors, ids, near = anchors[order].long(), ids[order].long(), near[order].double()
    kept, rest = _choose(anchors, near, rows, h, 2 * error + LAST_BITS * side.longest)
    anchors, ids, near = anchors[kept], ids[kept], near[kept]
    scores = _exact_scores(side, vectors, first_anchor, anchors, ids, room)
    if not bool(((near - scores.double()).abs() <= error + LAST_BITS * side.longest).all()):
        raise OSError(
            f"{near.device} computed products that are further from the exact ones than its arithmetic allows; no list "
            "was made of them. Check the device, or search with [engine] device = cpu."
        )
    best, best_scores = _sorted_heads(anchors, ids, scores, rows, h)
    bound = torch.maximum(rest + error, limits.double() + error).cpu().numpy()
    near_bound = bound.astype(np.float32)
    above = np.nextafter(near_bound, np.float32(np.inf))
    return Heads(best, best_scores, np.where(near_bound < bound, above, near_bound))


def _is_own(anchors: Tensor, ids: Tensor, positives: Positives) -> Bool[Tensor, " pairs"]:
    """Mark the pairs that are an anchor's own positives."""
    counts = np.diff(positives.offsets)
    keys = np.repeat(np.arange(len(counts)) << 32, counts) + positives.ids  # sorted
    if not len(keys):
        return torch.zeros(len(ids), dtype=torch.bool, device=ids.device)
    own = torch.from_numpy(keys).to(ids.device)
    asked = (anchors.long() << 32) + ids
    return own[torch.searchsorted(own, asked).clamp(max=len(own) - 1)] == asked


def _falling(anchors: Tensor, scores: Float32[Tensor, " pairs"]) -> Int64[Tensor, " pairs"]:
    """Make keys that sort by anchor, then by score, falling: a float's bits, without the order of negative ones."""
    bits = scores.view(torch.int32).long()
    rising = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    return (anchors.long() << 32) + (2**31 - 1 - rising)


def _choose(
    anchors: Int64[Tensor, " pairs"], near: Float64[Tensor, " pairs"], rows: int, h: int, slack: float
) -> tuple[Bool[Tensor, " pairs"], Float64[Tensor, " anchors"]]:
    """Mark what is within `slack` of the h-th best near score; the second is the best score of the others."""
    counts = torch.bincount(anchors, minlength=rows)
    starts = counts.cumsum(0) - counts
    padded = torch.cat([near, near.new_full((1,), -math.inf)])  # so that every place is one
    worst = torch.where(counts > h, padded[(starts + h - 1).clamp(max=len(near))], -math.inf)
    kept = ~(near < (worst - slack)[anchors])
    kept_counts = torch.bincount(anchors[kept], minlength=rows)
    rest = torch.where(kept_counts < counts, padded[(starts + kept_counts).clamp(max=len(near))], -math.inf)
    return kept, rest


def _exact_scores(
    side: Side,
    vectors: tuple[Vectors, Vectors],
    first_anchor: int,
    anchors: Int64[Tensor, " pairs"],
    ids: Int64[Tensor, " pairs"],
    room: int,
) -> Float32[Tensor, " pairs"]:
    """Add up in float64; where its error leaves two float32 numbers to choose from, the sum is repeated exactly."""
    of_anchors, of_candidates = vectors
    scores = torch.empty(len(ids), device=ids.device)
    undecided = torch.empty(len(ids), dtype=torch.bool, device=ids.device)
    dimensions = side.anchors.shape[1]
    size = max(1, room // (PAIR_ENTRY_BYTES * dimensions))
    for start in range(0, len(ids), size):
        part = slice(start, start + size)
        one, other = anchors[part] + first_anchor, ids[part]
        totals = (of_anchors.rows(one).double() * of_candidates.rows(other)).sum(1)
        errors = of_anchors.norms[one] * of_candidates.norms[other] * (dimensions + 1) * 2.0**-52
        scores[part] = lows = (totals - errors).float()
        undecided[part] = lows != (totals + errors).float()
    if len(places := undecided.nonzero().squeeze(1)):
        rows, others = anchors[places].cpu().numpy(), ids[places].cpu().numpy()
        exact = exact_scores(side.anchors[rows], side.candidates, np.arange(len(rows) + 1), others)
        scores[places] = torch.from_numpy(exact).to(scores.device)
    return scores + 0.0  # -0 becomes 0


def _sorted_heads(
    anchors: Int64[Tensor, " pairs"], ids: Int64[Tensor, " pairs"], scores: Float32[Tensor, " pairs"], rows: int, h: int
) -> tuple[np.ndarray, np.ndarray]:
    """Keep the first h of each anchor by score, falling, then by id, rising; -1 where there are fewer."""
    order = ids.argsort()
    order = order[_falling(anchors[order], scores[order]).argsort(stable=True)]
    counts = torch.bincount(anchors, minlength=rows)
    places = torch.arange(len(ids), device=ids.device) - (counts.cumsum(0) - counts)[anchors]  # anchors are sorted
    first = places < h
    best = torch.full((rows, h), -1, dtype=torch.int32, device=ids.device)
    best_scores = torch.full((rows, h), -math.inf, device=ids.device)
    best[anchors[first], places[first]] = ids[order][first].int()
    best_scores[anchors[first], places[first]] = scores[order][first]
    return best.cpu().numpy(), best_scores.cpu().numpy()
