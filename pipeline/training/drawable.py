"""Negatives of a table that may be drawn: their ranks, which may depend on the batch size, and their weights."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace

import numpy as np
from jaxtyping import Bool, Float, Float32, Float64, Int32, Int64
from torch import Tensor

from aoq.pipeline.config.screen import Suspected
from aoq.pipeline.config.tables import Sampling
from aoq.pipeline.reading import host_array
from aoq.pipeline.search.lists import NegativeLists
from aoq.pipeline.search.problem import Direction
from aoq.pipeline.tables.pairs import SIDES
from aoq.pipeline.tables.screens.view import Judged
from aoq.pipeline.tables.table import NegativeTable, ScreenedTable, table_parts

logger = logging.getLogger(__name__)

BatchRows = Int32[np.ndarray, " batch"]
HighestScores = Float64[np.ndarray, " batch"]
_Ranks = Float64[np.ndarray, " batch"]

_HARDER = 10.0
"""`hardness = "auto"` draws negatives this many times harder than a batch's hardest one."""
_FEWEST_RANKS = 4
"""Fewest ranks that it draws from, so that an anchor's negatives change from epoch to epoch."""


@dataclass(frozen=True)
class Drawable:
    """Negatives of each anchor that may be drawn, padded with -1, hardest first."""

    ids: Int32[np.ndarray, "anchors h"]
    weights: Float[np.ndarray, "anchors h"] | None = None
    """Likelihood of each negative relative to its list; by default all are equally likely."""
    match_probability: Float32[np.ndarray, "anchors h"] | None = None
    """Probability that each negative matches, for losses with soft margins."""
    scores: Float32[np.ndarray, "anchors h"] | None = None
    """The teacher's scores of the negatives."""
    positive_score: Float32[np.ndarray, " anchors"] | None = None
    """The teacher's score of each anchor's lowest own pair."""
    suspects: Int64[np.ndarray, "pairs 2"] = field(default_factory=lambda: np.empty((0, 2), np.int64))
    """Anchors and candidates of the whole lists that are suspected to match, and so are not drawn."""

    def may_draw(self, anchors: int | slice = slice(None)) -> Bool[np.ndarray, "*anchors h"]:
        """Mark negatives of these lists whose weight is not 0."""
        ids = self.ids[anchors]
        return ids >= 0 if self.weights is None else (ids >= 0) & (self.weights[anchors] > 0)

    def require_negatives(self, direction: Direction, anchors: Int32[np.ndarray, " some"], k: int = 1) -> None:
        """Refuse lists in which one of these anchors has nothing to draw; warn of those with fewer than `k`."""
        counts = self.may_draw().sum(axis=1)
        if len(empty := np.intersect1d(np.flatnonzero(counts == 0), anchors)):
            raise ValueError(
                f"{len(empty)} lists of {direction} have no negatives to draw, the first is row {empty[0]}; remove "
                "these rows and mine again, or loosen the screen or the weights."
            )
        if shorter := int((counts[np.unique(anchors)] < k).sum()):
            logger.warning("%d lists of %s are shorter than k = %d, and repeat their negatives", shorter, direction, k)

    def at(self, anchors: BatchRows, ranks: _Ranks, highest: HighestScores | None = None) -> BatchRows:
        """Return the negative of each anchor at a rank in [0, 1) among those with at most the `highest` score."""
        return self.ids[anchors, self._places(anchors, ranks, highest)]

    def probability_at(self, anchors: BatchRows, ranks: _Ranks) -> Float32[np.ndarray, " batch"] | None:
        return None if self.match_probability is None else self.match_probability[anchors, self._places(anchors, ranks)]

    def listed(
        self, anchors: BatchRows, ranks: Float64[np.ndarray, "count batch"], highest: HighestScores | None = None
    ) -> tuple[Int32[np.ndarray, "count batch"], Float32[np.ndarray, "batch count"]]:
        """Return the negatives of each anchor at rising ranks, and their scores.

        The score is -inf where a short list repeats the negative before.
        """
        assert self.scores is not None  # set for all lists of a table
        places = np.stack([self._places(anchors, each, highest) for each in ranks], axis=1)
        scores = self.scores[anchors[:, None], places]
        scores[:, 1:][places[:, 1:] == places[:, :-1]] = -np.inf
        return self.ids[anchors[:, None], places].T, scores

    def _places(
        self, anchors: BatchRows, ranks: _Ranks, highest: HighestScores | None = None
    ) -> Int64[np.ndarray, " batch"]:
        """Return the place in each anchor's list of a rank in [0, 1); the last if all scores are above the highest."""
        rows = self.ids[anchors]
        if self.weights is None and highest is None:
            return (ranks * (rows >= 0).sum(axis=1)).astype(np.int64)
        weights = np.where(rows >= 0, 1 if self.weights is None else self.weights[anchors], 0)
        if highest is not None:
            assert self.scores is not None  # a table's lists
            lower = weights * (self.scores[anchors] <= highest[:, None])
            last = np.arange(rows.shape[1]) == rows.shape[1] - 1 - (weights[:, ::-1] > 0).argmax(axis=1)[:, None]
            weights = np.where(lower.any(axis=1, keepdims=True), lower, last)
        sums = weights.cumsum(axis=1, dtype=np.float64)
        places = (sums <= ranks[:, None] * sums[:, -1:]).sum(axis=1)
        last = (sums < sums[:, -1:]).sum(axis=1)  # the last place with a weight: a product may be rounded up
        return np.minimum(places, last)


def drawable(
    direction: Direction,
    lists: NegativeLists,
    *,
    h: int | None = None,
    after: int = 0,
    option: str = "",
    weights: Float[np.ndarray, "anchors h"] | Float[Tensor, "anchors h"] | None = None,
    judged: Judged | None = None,
    suspected: Suspected = "drop",
    gaps: tuple[float, float] | None = None,
) -> Drawable:
    """Take the first `h` of each list (by default all) without the hardest `after`, with `weights` of the same shape.

    A screen's verdict `judged` and `gaps` (gap, sharpness) weigh the lists too. An anchor left with suspected negatives
    only draws from the least suspected. With soft margins the suspicion is kept as a probability.
    """
    shape, ranks = lists.negative_ids.shape, slice(after, h)
    _check_depth(direction, lists.negative_ids, h, after, option or f"h_{SIDES[direction][1]}")
    ids = lists.negative_ids[:, ranks]
    drawn = Drawable(ids, scores=lists.scores[:, ranks], positive_score=lists.positive_score)
    left = (ids >= 0).astype(np.float64)
    if weights is not None:
        weights = host_array(weights, f"{direction}_weights")
        if weights.shape != shape:
            raise ValueError(f"{direction}_weights are {weights.shape}, but the lists of {direction} are {shape}.")
        if not ((weights >= 0) & (weights < np.inf)).all():
            raise ValueError(f"{direction}_weights must be finite and not below 0; give 0 to what is never drawn.")
        left *= weights[:, ranks]
    if judged is None and gaps is None:
        return drawn if weights is None else replace(drawn, weights=weights[:, ranks])
    if judged is not None:
        may_draw = left > 0
        left *= judged.weights(suspected)[:, ranks]
        may_spare = judged.is_allowed if suspected != "positive" else judged.is_allowed & ~judged.matches
        _spare(direction, left, may_draw & may_spare[:, ranks], judged.suspicion[:, ranks])
    logarithms = np.zeros(left.shape) if gaps is None else _gap_logarithms(lists, *gaps)[:, ranks]
    with np.errstate(divide="ignore"):
        logarithms = np.where(left > 0, logarithms + np.log(left), -np.inf)
    highest = logarithms.max(axis=1, keepdims=True)
    relative = np.exp(logarithms - np.where(np.isfinite(highest), highest, 0))
    if judged is not None:
        never = judged.is_allowed & (judged.weights(suspected) == 0) & (lists.negative_ids >= 0)
        rows, places = np.nonzero(never)
        drawn = replace(drawn, suspects=np.stack([rows, lists.negative_ids[rows, places]], axis=1).astype(np.int64))
    probability = judged.suspicion[:, ranks] if judged is not None and suspected == "soft_margin" else None
    return replace(drawn, weights=relative.astype(np.float32), match_probability=probability)


def drawable_lists(
    table: NegativeTable | ScreenedTable,
    direction: Direction,
    *,
    h: int | None,
    option: str = "",
    weights: Float[np.ndarray, "anchors h"] | Float[Tensor, "anchors h"] | None = None,
) -> Drawable:
    """Take the lists of a table but what its screen flags, unless all of a list are flagged; `option` names `h`."""
    parts = table_parts(table)
    if parts.suspected == "soft_margin":
        raise ValueError(
            "soft margins are applied by the loss, but rows of a table do not carry them; screen with suspected = "
            '"drop", "downweight" or "keep".'
        )
    lists, judged = parts.table[direction], parts.view[direction] if parts.view else None
    if not lists.h:
        raise ValueError(f"the table has no lists of {direction}; mine both directions.")
    return drawable(direction, lists, h=h, option=option, weights=weights, judged=judged, suspected=parts.suspected)


def _gap_logarithms(lists: NegativeLists, gap: float, sharpness: float) -> Float64[np.ndarray, "anchors h"]:
    """Return logarithms of weights exp(-sharpness (g - gap)^2), where g is a negative's gap to the lowest positive.

    SimANS (Zhou et al. 2022) prefers negatives about as similar as the positive: more similar ones may be matches.
    """
    if len(unknown := np.flatnonzero(~np.isfinite(lists.positive_score))):
        raise ValueError(
            f"sampling by score gap needs positives' scores, but {len(unknown)} anchors have none, the first is "
            f"{unknown[0]}; choose another strategy, or mine a table with all pairs."
        )
    return -sharpness * np.square(lists.positive_score[:, None].astype(np.float64) - lists.scores - gap)


def _check_depth(
    direction: Direction, ids: Int32[np.ndarray, "anchors h"], h: int | None, after: int, depth: str
) -> None:
    if h is not None and not 1 <= h <= ids.shape[1]:
        raise ValueError(
            f"{depth} = {h}, but the table keeps {ids.shape[1]} per anchor in {direction}; give 1 to {ids.shape[1]}, "
            "or mine a deeper table."
        )
    shortest = int((ids[:, :h] >= 0).sum(axis=1).min())
    if 0 < after >= shortest:
        raise ValueError(
            f"[sampling] hardest leaves out the first {after} of each list of {direction}, but the shortest has "
            f"{shortest}; raise hardest, or mine longer lists ([mining] {depth})."
        )


def _spare(
    direction: Direction,
    left: Float64[np.ndarray, "anchors drawn"],
    allowed: Bool[np.ndarray, "anchors drawn"],
    suspicion: Float32[np.ndarray, "anchors drawn"],
) -> None:
    """Restore, in place, the weight of the least suspected negatives of anchors that have nothing left."""
    bare = np.flatnonzero(~left.any(axis=1))
    if len(without := bare[~allowed[bare].any(axis=1)]):
        raise ValueError(
            f"the screen leaves {len(without)} anchors of {direction} no negative to draw, the first is {without[0]}; "
            "widen range_*, *_score or max_uses, or raise h_*."
        )
    if len(bare):
        least = np.where(allowed[bare], suspicion[bare], np.inf)
        left[bare] = least == least.min(axis=1, keepdims=True)
        sentence = "%s: %d of %d anchors have suspected negatives only, and draw from the least suspected"
        logger.warning(sentence, direction, len(bare), len(left))


@dataclass(frozen=True)
class DrawnRanks:
    """Ranks `start` to `stop`, from 0, of lists of candidates, beside a batch, whose hardest negative has rank C / B.

    >>> print(DrawnRanks("i2t", 0, 60, candidates=30_000, batch=64))
    the hardest in a random batch of 64 has rank 469 of 30,000 captions; draws from the first 60, about 7.8 times harder
    >>> print(DrawnRanks("t2i", 0, 60, candidates=600, batch=64))
    the hardest in a random batch of 64 has rank 9 of 600 images; draws from the first 60, of which about 84% are easier
    """

    direction: Direction
    start: int
    stop: int
    candidates: int
    batch: int

    def __str__(self) -> str:
        rank = max(1.0, self.candidates / self.batch)
        harder = rank / self.stop  # of the last rank drawn
        easier = max(0.0, self.stop - max(self.start, rank)) / max(1, self.stop - self.start)
        times = f"about {harder:.2g} times harder" if harder >= 1.5 else "no harder"
        if easier >= 0.005:
            times = f"of which about {easier:.0%} are easier"
        drawn = f"the first {self.stop}" if self.start == 0 else f"ranks {self.start + 1} to {self.stop}"
        among = f"{round(rank):,} of {self.candidates:,} {SIDES[self.direction][1]}"
        return f"the hardest in a random batch of {self.batch} has rank {among}; draws from {drawn}, {times}"


def drawn_ranks(
    sampling: Sampling,
    direction: Direction,
    *,
    depth: int,
    candidates: int,
    batch: int,
    left: Bool[np.ndarray, "anchors depth"] | None = None,
) -> DrawnRanks:
    """Return the ranks that [sampling] draws from lists of `depth`.

    `hardness = "auto"` takes the first C / (10 B), at least 4; where a screen leaves only some (`left`), as many of
    those, on average over the lists.
    """
    limit = sampling.h_captions if direction == "i2t" else sampling.h_images
    start, stop = 0, min(depth, limit or depth)  # mining shortens lists where there are fewer candidates
    if sampling.hardness == "auto":
        stop = max(_FEWEST_RANKS, round(candidates / (batch * _HARDER)))
        if left is not None:
            stop = 1 + int(np.searchsorted(left.mean(axis=0).cumsum(), stop - 0.5))
        stop = min(depth, stop)
    elif sampling.hardness is not None:
        stop = max(1, min(depth, round(candidates / (batch * sampling.hardness))))
        start = 0 if sampling.hardest is None else round(candidates / (batch * sampling.hardest))
    return DrawnRanks(direction, start, stop, candidates, batch)
