"""Negatives of a table that may be drawn, and their weights: the sampler's input."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Float32, Float64, Int32, Int64

from aoq.pipeline.config.screen import Suspected
from aoq.pipeline.search.lists import NegativeLists
from aoq.pipeline.search.problem import Direction
from aoq.pipeline.tables.screens.view import Judged

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Drawable:
    """Negatives of each anchor that may be drawn, padded with -1, hardest first.

    A negative's weight is its likelihood relative to its list; without weights all are equally likely.
    """

    ids: Int32[np.ndarray, "anchors h"]
    weights: Float[np.ndarray, "anchors h"] | None = None
    match_probability: Float32[np.ndarray, "anchors h"] | None = None
    """Probability that each negative matches, for losses with soft margins."""

    def may_draw(self, anchors: int | slice = slice(None)) -> Bool[np.ndarray, "*anchors h"]:
        """Mark the places of these lists that hold a negative whose weight is not 0."""
        ids = self.ids[anchors]
        return ids >= 0 if self.weights is None else (ids >= 0) & (self.weights[anchors] > 0)

    def require_negatives(self, direction: Direction, anchors: Int32[np.ndarray, " some"]) -> None:
        """Refuse lists in which one of these anchors has nothing to draw."""
        if len(empty := np.intersect1d(np.flatnonzero(~self.may_draw().any(axis=1)), anchors)):
            raise ValueError(
                f"{len(empty)} lists of {direction} hold nothing to draw, the first that of row {empty[0]}; remove "
                "these rows and mine again, or loosen the screen or the weights."
            )

    def at(
        self, anchors: Int32[np.ndarray, " batch"], ranks: Float64[np.ndarray, " batch"]
    ) -> Int32[np.ndarray, " batch"]:
        """Return the negative of each anchor at a rank in [0, 1)."""
        return self.ids[anchors, self.places(anchors, ranks)]

    def places(
        self, anchors: Int32[np.ndarray, " batch"], ranks: Float64[np.ndarray, " batch"]
    ) -> Int64[np.ndarray, " batch"]:
        """Return the place in each anchor's list of a rank in [0, 1)."""
        rows = self.ids[anchors]
        if self.weights is None:
            lengths: Int64[np.ndarray, " batch"] = (rows >= 0).sum(axis=1)
            return (ranks * lengths).astype(np.int64)
        sums = np.where(rows >= 0, self.weights[anchors], 0).cumsum(axis=1, dtype=np.float64)
        places = (sums <= ranks[:, None] * sums[:, -1:]).sum(axis=1)
        last = (sums < sums[:, -1:]).sum(axis=1)  # the last place with a weight: a product may be rounded up
        return np.minimum(places, last)


@dataclass(frozen=True)
class GapWeights:
    """Weights exp(-sharpness (g - gap)^2), where g is a negative's gap below the anchor's lowest positive.

    As in SimANS (Zhou et al. 2022): negatives about as similar as the positive are drawn most, the most similar ones,
    which may be true matches, and the easy ones less.
    """

    gap: float
    sharpness: float

    def logarithms(self, lists: NegativeLists) -> Float64[np.ndarray, "anchors h"]:
        if len(unknown := np.flatnonzero(~np.isfinite(lists.positive_score))):
            raise ValueError(
                f"sampling by score gap needs positives' scores, and {len(unknown)} anchors have none, the first is "
                f"{unknown[0]}; choose another strategy, or mine a table with all pairs."
            )
        below = lists.positive_score[:, None].astype(np.float64) - lists.scores
        return -self.sharpness * np.square(below - self.gap)


def drawable(
    direction: Direction,
    lists: NegativeLists,
    *,
    h: int | None = None,
    option: str | None = None,
    after: int = 0,
    weights: Float[np.ndarray, "anchors h"] | None = None,
    judged: Judged | None = None,
    suspected: Suspected = "drop",
    gaps: GapWeights | None = None,
) -> Drawable:
    """Take the first `h` of each list (by default all) without the hardest `after`, with `weights` of the same shape.

    Without `weights`, a screen's verdict `judged` and `gaps` weigh the lists. An anchor left with suspected negatives
    only draws from the least suspected. With soft margins the suspicion is kept as a probability. Errors name `h` after
    the caller's `option`.
    """
    shape, ranks = lists.negative_ids.shape, _ranks(direction, lists.negative_ids, h, option, after)
    ids = lists.negative_ids[:, ranks]
    if weights is not None:
        if weights.shape != shape:
            raise ValueError(f"{direction}_weights are {weights.shape}, and the lists of {direction} are {shape}.")
        if not ((weights >= 0) & (weights < np.inf)).all():
            raise ValueError(f"{direction}_weights must be finite and not below 0; give 0 to what is never drawn.")
        return Drawable(ids, weights[:, ranks])
    if judged is None and gaps is None:
        return Drawable(ids)
    left = (ids >= 0).astype(np.float64)
    if judged is not None:
        left *= judged.weights(suspected)[:, ranks]
        _spare(direction, left, (ids >= 0) & judged.is_allowed[:, ranks], judged.suspicion[:, ranks])
    logarithms = np.zeros(left.shape) if gaps is None else gaps.logarithms(lists)[:, ranks]
    with np.errstate(divide="ignore"):
        logarithms = np.where(left > 0, logarithms + np.log(left), -np.inf)
    highest = logarithms.max(axis=1, keepdims=True)
    relative = np.exp(logarithms - np.where(np.isfinite(highest), highest, 0))
    probability = judged.suspicion[:, ranks] if judged is not None and suspected == "soft_margin" else None
    return Drawable(ids, relative.astype(np.float32), probability)


def _ranks(
    direction: Direction, ids: Int32[np.ndarray, "anchors h"], h: int | None, option: str | None, after: int
) -> slice:
    depth = "h_captions" if direction == "i2t" else "h_images"
    if h is not None and not 1 <= h <= ids.shape[1]:
        raise ValueError(
            f"{option or f'[sampling] {depth}'} = {h}, but the table keeps {ids.shape[1]} per anchor in {direction}; "
            f"give 1 to {ids.shape[1]}, or mine a deeper table."
        )
    shortest = int((ids[:, :h] >= 0).sum(axis=1).min())
    if 0 < after >= shortest:
        raise ValueError(
            f"[sampling] hardest leaves out the first {after} of each list of {direction}, and the shortest has "
            f"{shortest}; raise it, or mine more of them ([mining] {depth})."
        )
    return slice(after, h)


def _spare(
    direction: Direction,
    left: Float64[np.ndarray, "anchors drawn"],
    allowed: Bool[np.ndarray, "anchors drawn"],
    suspicion: Float32[np.ndarray, "anchors drawn"],
) -> None:
    """Give the least suspected negatives of an anchor that has nothing left a weight again, in place."""
    bare = np.flatnonzero(~left.any(axis=1))
    if len(without := bare[~allowed[bare].any(axis=1)]):
        raise ValueError(
            f"[screen] leaves {len(without)} anchors of {direction} no negative to draw, the first is {without[0]}; "
            "widen range_*, *_score or max_uses, or raise [sampling] h_*."
        )
    if len(bare):
        least = np.where(allowed[bare], suspicion[bare], np.inf)
        left[bare] = least == least.min(axis=1, keepdims=True)
        logger.warning(
            "%s: %d of %d anchors have suspected negatives only, and draw from the least suspected",
            direction,
            len(bare),
            len(left),
        )
