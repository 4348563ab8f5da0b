"""Exact top-h lists from a search that is only near.

The search proposes a few more candidates than asked for. Their dot products are computed again in float64 and rounded
to float32, in an order that depends on nothing but the pair; what the search did not propose is bounded by its last
score and the rounding error of float32. A row whose h-th negative does not clear that bound is searched deeper.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float32, Int32, Int64

from pipeline.mining.search import Search

logger = logging.getLogger(__name__)

SLACK = 32
"""How many candidates beyond h and the positives the first search asks for."""


@dataclass(frozen=True)
class Positives:
    """The candidates that are no negatives: those of anchor n are `ids[offsets[n]:offsets[n + 1]]`."""

    ids: Int32[np.ndarray, " pairs"]
    offsets: Int64[np.ndarray, " anchors_and_one"]

    def rows(self, start: int, stop: int) -> Positives:
        first, last = self.offsets[start], self.offsets[stop]
        return Positives(self.ids[first:last], self.offsets[start : stop + 1] - first)

    @property
    def most(self) -> int:
        return int(np.diff(self.offsets).max())


def exact_negatives(
    anchors: Float32[np.ndarray, "anchors D"],
    candidates: Float32[np.ndarray, "candidates D"],
    positives: Positives,
    *,
    h: int,
    search: Search,
) -> tuple[Int32[np.ndarray, "anchors h"], Float32[np.ndarray, "anchors h"], Float32[np.ndarray, " anchors"]]:
    """The h candidates of highest dot product that are no positives: ids, scores, and the lowest positive's score.

    `positives` lists the candidate ids of each anchor. Order: score falling, then id rising.
    """
    require_candidates(h, positives, len(candidates), option="h")
    most = positives.most
    ids = np.empty((len(anchors), h), dtype=np.int32)
    scores = np.empty((len(anchors), h), dtype=np.float32)
    error = _rounding_bound(anchors, candidates)
    pending = np.arange(len(anchors))
    k = h + most + SLACK
    while len(pending):
        k = min(k, len(candidates))
        rough, proposed = search(anchors[pending], candidates, k)
        exact = rescore(anchors[pending], candidates, proposed)
        exact[_is_positive(pending, proposed, positives)] = -np.inf
        order = np.lexsort((proposed, -exact))[:, :h]
        ids[pending] = np.take_along_axis(proposed, order, axis=1)
        scores[pending] = np.take_along_axis(exact, order, axis=1)
        unproposed_at_most = rough[:, -1] + error if k < len(candidates) else np.full(len(pending), -np.inf)
        pending = pending[scores[pending, -1] <= unproposed_at_most]
        if len(pending):
            logger.info("%d anchors have near-ties at rank %d; searching them %d deep", len(pending), h, 4 * k)
        k *= 4
    owners = np.repeat(np.arange(len(anchors)), np.diff(positives.offsets))
    own = rescore_pairs(anchors[owners], candidates, positives.ids)
    return ids, scores, np.minimum.reduceat(own, positives.offsets[:-1])


def require_candidates(h: int, positives: Positives, candidates: int, *, option: str) -> None:
    """Every anchor must have h negatives."""
    most = positives.most
    if h + most > candidates:
        raise ValueError(
            f"h={h} needs at least {h + most} candidates (each anchor has up to {most} positives), "
            f"got {candidates}; lower `{option}` to at most {candidates - most}."
        )


def rescore(
    anchors: Float32[np.ndarray, "anchors D"],
    candidates: Float32[np.ndarray, "candidates D"],
    ids: Int64[np.ndarray, "anchors k"],
) -> Float32[np.ndarray, "anchors k"]:
    """Dot products in float64, rounded to float32: the same for a pair whatever else is computed with it."""
    scores = np.empty(ids.shape, dtype=np.float32)
    for row, (anchor, proposed) in enumerate(zip(anchors, ids, strict=True)):  # one anchor's vectors fit the cache
        products = candidates[proposed].astype(np.float64)
        products *= anchor.astype(np.float64)
        scores[row] = products.sum(axis=1)  # along the contiguous axis: its order depends on D alone
    return scores


def rescore_pairs(
    anchors: Float32[np.ndarray, "pairs D"],
    candidates: Float32[np.ndarray, "candidates D"],
    ids: Int32[np.ndarray, " pairs"],
) -> Float32[np.ndarray, " pairs"]:
    return rescore(anchors, candidates, ids.astype(np.int64)[:, None])[:, 0]


def _rounding_bound(
    anchors: Float32[np.ndarray, "anchors D"], candidates: Float32[np.ndarray, "candidates D"]
) -> float:
    """How far a float32 dot product can be from the rounded exact one: (D + 1) u |a| |c|, with u = 2**-24."""
    longest = [float(np.sqrt(np.max(np.einsum("nd,nd->n", block, block)))) for block in (anchors, candidates)]
    return 1.01 * (anchors.shape[1] + 1) * 2.0**-24 * longest[0] * longest[1]


def _is_positive(
    rows: Int64[np.ndarray, " pending"], ids: Int64[np.ndarray, "pending k"], positives: Positives
) -> Bool[np.ndarray, "pending k"]:
    found = np.zeros(ids.shape, dtype=bool)
    counts = positives.offsets[rows + 1] - positives.offsets[rows]
    for nth in range(int(counts.max())):  # at most the captions of one image
        has = counts > nth
        own = positives.ids[positives.offsets[rows[has]] + nth]
        found[has] |= ids[has] == own[:, None]
    return found
