"""From which ranks of a table's lists draws come, and how likely each negative is: what the sampler is given."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float32, Float64, Int32

from aoq.pipeline.config.screen import Suspected
from aoq.pipeline.search.lists import NegativeLists
from aoq.pipeline.search.problem import Direction
from aoq.pipeline.tables.screens.view import Judged

logger = logging.getLogger(__name__)

DEPTH_OPTION = {"i2t": "h_captions", "t2i": "h_images"}


def expected_rank(candidates: int, batch: int, harder: float) -> int:
    """The rank of a negative that is `harder` times harder than a batch's hardest.

    Of C candidates the hardest negative in a random batch of B has rank C / B on average.

    >>> expected_rank(566_435, 128, 15.0), expected_rank(30_000, 64, 15.0)
    (295, 31)
    """
    return round(candidates / (batch * harder))


def drawn_ranks(direction: Direction, ids: Int32[np.ndarray, "anchors h"], *, h: int | None, after: int = 0) -> slice:
    """The ranks of each list that are drawn: its first `h` (by default all) without the hardest `after`."""
    option = DEPTH_OPTION[direction]
    if h is not None and h > ids.shape[1]:
        raise ValueError(
            f"[sampling] {option} = {h}, but the table keeps {ids.shape[1]} per anchor in {direction}; "
            f"lower it, or raise [mining] {option} and mine again."
        )
    shortest = int((ids[:, :h] >= 0).sum(axis=1).min())
    if 0 < after >= shortest:
        raise ValueError(
            f"[sampling] hardest leaves out the first {after} of each list of {direction}, and the shortest has "
            f"{shortest}; raise it, or mine more of them ([mining] {option})."
        )
    return slice(after, h)


@dataclass(frozen=True)
class GapWeights:
    """exp(-sharpness (g - gap)^2), where g is how far a negative scores below the anchor's lowest positive.

    As in SimANS (Zhou et al. 2022): negatives about as similar as the positive come up most, the very similar,
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


def draw_weights(
    direction: Direction,
    lists: NegativeLists,
    ranks: slice,
    *,
    judged: Judged | None = None,
    suspected: Suspected = "drop",
    gaps: GapWeights | None = None,
) -> Float32[np.ndarray, "anchors drawn"] | None:
    """How likely each negative of these ranks is beside the others of its list; None where all are alike.

    `judged` is the screen's verdict on the lists. An anchor that is left with suspected negatives only draws from
    those that are suspected least.
    """
    if judged is None and gaps is None:
        return None
    listed = lists.negative_ids[:, ranks] >= 0
    left = listed.astype(np.float64)
    if judged is not None:
        left *= judged.weights(suspected)[:, ranks]
        left = _spare(direction, left, listed & judged.is_allowed[:, ranks], judged.suspicion[:, ranks])
    logarithms = np.zeros(left.shape) if gaps is None else gaps.logarithms(lists)[:, ranks]
    with np.errstate(divide="ignore"):
        logarithms = np.where(left > 0, logarithms + np.log(left), -np.inf)
    highest = logarithms.max(axis=1, keepdims=True)
    relative = np.exp(logarithms - np.where(np.isfinite(highest), highest, 0))
    return np.asarray(relative, dtype=np.float32)


def _spare(
    direction: Direction,
    left: Float64[np.ndarray, "anchors drawn"],
    allowed: Bool[np.ndarray, "anchors drawn"],
    suspicion: Float32[np.ndarray, "anchors drawn"],
) -> Float64[np.ndarray, "anchors drawn"]:
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
            "%s: %d of %d anchors have suspected negatives only, and draw from those that are suspected least",
            direction,
            len(bare),
            len(left),
        )
    return left
