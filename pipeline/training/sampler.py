"""Drawing offline negatives from the table: two negatives a pair and their companions, AOQ section 3.2."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float32, Float64, Int32, Int64

from aoq.pipeline.config.screen import Suspected
from aoq.pipeline.data.pairs import CaptionsOf
from aoq.pipeline.search.lists import NegativeLists
from aoq.pipeline.search.problem import DIRECTIONS, Direction
from aoq.pipeline.tables.screens.view import View
from aoq.pipeline.tables.table import NegativeTable

logger = logging.getLogger(__name__)

WHOLE = ((0.0, 1.0),)
MOST_REDRAWS = 100
"""After so many draws a pair whose every negative is the other's positive goes without derived pairs."""


@dataclass(frozen=True)
class Draw:
    """Row numbers for B anchors: pair b is (images[b], captions[b])."""

    images: Int32[np.ndarray, " batch"]
    captions: Int32[np.ndarray, " batch"]
    offline_captions: Int32[np.ndarray, " batch"]
    """An offline negative of each image (t_off)."""
    offline_images: Int32[np.ndarray, " batch"]
    """An offline negative of each caption (i_off)."""
    own_images: Int32[np.ndarray, " batch"]
    """The image of each offline caption: its companion."""
    own_captions: Int32[np.ndarray, " batch"]
    """A caption of each offline image: its companion."""
    corresponding: Bool[np.ndarray, " batch"]
    """Whether the two negatives are each other's positives after all, and with them both derived pairs."""
    collision_rate: float = 0.0
    """The share of first draws in which they were."""

    @property
    def groups(self) -> list[Group]:
        """Anchors, offline negatives, companions: each B images and B captions."""
        return [
            (self.images, self.captions),
            (self.offline_images, self.offline_captions),
            (self.own_images, self.own_captions),
        ]

    @property
    def triples(self) -> Group:
        """3 B true pairs: those drawn, then (i_own, t_off), then (i_off, t_own)."""
        images = np.concatenate([self.images, self.own_images, self.offline_images])
        return images, np.concatenate([self.captions, self.offline_captions, self.own_captions])


Group = tuple[Int32[np.ndarray, " group"], Int32[np.ndarray, " group"]]
Ranks = Float64[np.ndarray, "2 batch"]
"""Where in its list each draw falls, in [0, 1): row 0 for the captions of images, row 1 for images of captions.

In a list whose negatives have weights, shares of the whole weight take the place of shares of the length.
"""


def uniform_ranks(rng: np.random.Generator, batch: int) -> Ranks:
    """Two independent uniform draws, as in the paper."""
    return rng.random((2, batch))


def coupled_ranks(rng: np.random.Generator, batch: int) -> Ranks:
    """One uniform draw for both lists, as in the official code (rank n and n // 5)."""
    return np.repeat(rng.random((1, batch)), 2, axis=0)


def normal_ranks(rng: np.random.Generator, batch: int) -> Ranks:
    """Two draws around the middle of the list, N(1/2, 1/4) within [0, 1): the first ranks, where false
    negatives gather, come up less often (AOQ supplement, which gives no numbers)."""
    ranks = rng.normal(0.5, 0.25, (2, batch))
    while (outside := (ranks < 0) | (ranks >= 1)).any():
        ranks[outside] = rng.normal(0.5, 0.25, int(outside.sum()))
    return ranks


STRATEGIES: dict[str, Callable[[np.random.Generator, int], Ranks]] = {
    "uniform": uniform_ranks,
    "coupled": coupled_ranks,
    "normal": normal_ranks,
    "weighted": uniform_ranks,
}


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


def expected_rank(candidates: int, batch: int, harder: float) -> int:
    """The rank of a negative that is `harder` times harder than the batch's own.

    Of C candidates the hardest negative in a random batch of B has rank C / B on average.

    >>> expected_rank(566_435, 128, 15.0), expected_rank(30_000, 64, 15.0)
    (295, 31)
    """
    return round(candidates / (batch * harder))


class Sampler:
    """Draws from the head of each list of a table; `h_captions` and `h_images` narrow it.

    `after_captions` and `after_images` leave out so many of the hardest. `view` says what is left of each negative,
    `weights` how likely it is, and `windows` from which part of the lists it comes, as [start, stop) in shares of
    their length (of their weight, where there are weights): one for each epoch, the last for all that follow.
    """

    def __init__(
        self,
        table: NegativeTable,
        image_of: Int32[np.ndarray, " captions"],
        captions_of: CaptionsOf,
        *,
        strategy: str = "uniform",
        resample: bool = True,
        h_captions: int | None = None,
        h_images: int | None = None,
        after_captions: int = 0,
        after_images: int = 0,
        windows: Sequence[Sequence[float]] = WHOLE,
        weights: GapWeights | None = None,
        view: View | None = None,
        suspected: Suspected = "drop",
    ) -> None:
        if (len(table.i2t), len(table.t2i)) != (len(captions_of.offsets) - 1, len(image_of)):
            raise ValueError(
                f"the table has {len(table.i2t)} images and {len(table.t2i)} captions, the training split has "
                f"{len(captions_of.offsets) - 1} and {len(image_of)}; it was mined on other data."
            )
        heads = {"i2t": ("h_captions", h_captions, after_captions), "t2i": ("h_images", h_images, after_images)}
        places = {d: _places(d, table[d].negative_ids, *heads[d]) for d in DIRECTIONS}
        self._ids = {d: table[d].negative_ids[:, places[d]] for d in DIRECTIONS}
        self._weights: dict[Direction, Float32[np.ndarray, "anchors drawn"] | None] = {
            d: _weights(d, table[d], view, suspected, weights, places[d]) for d in DIRECTIONS
        }
        self._image_of, self._captions_of = image_of, captions_of
        self._strategy, self._resample, self._windows = STRATEGIES[strategy], resample, windows

    def draw(self, captions: Int32[np.ndarray, " batch"], rng: np.random.Generator, epoch: int = 0) -> Draw:
        """Negatives and companions for the pairs of these captions; the same rng state gives the same draw.

        `epoch` counts from the first that draws. Without `resample` the first draws are kept, and none counts as
        corresponding.
        """
        start, stop = self._windows[min(epoch, len(self._windows) - 1)]

        def ranks_of(batch: int) -> Ranks:
            return start + self._strategy(rng, batch) * (stop - start)

        ranks = ranks_of(len(captions))
        draw = self.at(captions, ranks, rng.random(len(captions)))
        rate = float(draw.corresponding.mean())
        for _ in range(MOST_REDRAWS if self._resample else 0):
            if not draw.corresponding.any():
                break
            ranks[:, draw.corresponding] = ranks_of(int(draw.corresponding.sum()))
            draw = self.at(captions, ranks, rng.random(len(captions)))
        return replace(draw, corresponding=draw.corresponding & self._resample, collision_rate=rate)

    def at(self, captions: Int32[np.ndarray, " batch"], ranks: Ranks, choice: Float64[np.ndarray, " batch"]) -> Draw:
        """The draw at given places: `ranks` in the lists, `choice` in [0, 1) among the offline image's captions."""
        images = self._image_of[captions]
        offline_captions = self._entries("i2t", images, ranks[0])
        offline_images = self._entries("t2i", captions, ranks[1])
        first = self._captions_of.offsets[offline_images]
        count = self._captions_of.offsets[offline_images + 1] - first
        own_captions = self._captions_of.order[first + (choice * count).astype(np.int64)]
        own_images = self._image_of[offline_captions]
        corresponding = own_images == offline_images
        return Draw(images, captions, offline_captions, offline_images, own_images, own_captions, corresponding)

    def _entries(
        self, direction: Direction, anchors: Int32[np.ndarray, " batch"], ranks: Float64[np.ndarray, " batch"]
    ) -> Int32[np.ndarray, " batch"]:
        rows, weights = self._ids[direction][anchors], self._weights[direction]
        if weights is None:
            lengths: Int64[np.ndarray, " batch"] = (rows >= 0).sum(axis=1)
            places = (ranks * lengths).astype(np.int64)
        else:
            sums = weights[anchors].cumsum(axis=1, dtype=np.float64)
            places = (sums <= ranks[:, None] * sums[:, -1:]).sum(axis=1)
            last = (sums < sums[:, -1:]).sum(axis=1)  # the last place with a weight: a product may be rounded up
            places = np.minimum(places, last)
        return np.take_along_axis(rows, places[:, None], axis=1)[:, 0]


def _weights(
    direction: Direction,
    lists: NegativeLists,
    view: View | None,
    suspected: Suspected,
    gaps: GapWeights | None,
    places: slice,
) -> Float32[np.ndarray, "anchors drawn"] | None:
    """How likely each negative is beside the others of its list; None where all are alike.

    An anchor that is left with none, all being suspected, draws from those that are suspected least.
    """
    if view is None and gaps is None:
        return None
    listed = lists.negative_ids[:, places] >= 0
    left = listed.astype(np.float64)
    if view is not None:
        seen = view[direction]
        left *= seen.weights(suspected)[:, places]
        left = _spare(direction, left, listed & seen.is_allowed[:, places], seen.suspicion[:, places])
    logarithms = np.zeros(left.shape) if gaps is None else gaps.logarithms(lists)[:, places]
    with np.errstate(divide="ignore"):
        logarithms = np.where(left > 0, logarithms + np.log(left), -np.inf)
    result: Float32[np.ndarray, "anchors drawn"] = np.exp(logarithms - logarithms.max(axis=1, keepdims=True)).astype(
        np.float32
    )
    return result


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


def _places(direction: Direction, ids: Int32[np.ndarray, "anchors h"], option: str, h: int | None, after: int) -> slice:
    """Where in the lists draws fall."""
    if h is not None and h > ids.shape[1]:
        raise ValueError(
            f"[sampling] {option} = {h}, but the table keeps {ids.shape[1]} per anchor in {direction}; "
            f"lower it, or raise [mining] {option} and mine again."
        )
    if len(empty := np.flatnonzero(ids[:, 0] < 0)):
        raise ValueError(f"{len(empty)} anchors of {direction} have no negative at all, the first is {empty[0]}.")
    shortest = int((ids[:, :h] >= 0).sum(axis=1).min())
    if after >= shortest:
        raise ValueError(
            f"[sampling] hardest leaves out the first {after} of each list of {direction}, and the shortest has "
            f"{shortest}; raise it, or mine more of them ([mining] {option})."
        )
    return slice(after, h)
