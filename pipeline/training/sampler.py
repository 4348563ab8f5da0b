"""Drawing offline negatives from the table: two negatives a pair and their companions, AOQ section 3.2."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, Float64, Int32, Int64

from aoq.pipeline.data.pairs import captions_of

WHOLE = ((0.0, 1.0),)
MOST_REDRAWS = 100
"""After this many redraws a pair whose offline negatives still correspond goes without derived pairs."""


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
    """True where the two offline negatives are a true pair; both derived pairs then are too."""
    collision_rate: float = 0.0
    """The fraction of first draws in which they were."""

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


class Sampler:
    """Draws from lists of negatives: `i2t` holds captions of each image, `t2i` images of each caption, padded with -1.

    A negative's weight is how likely it is beside the others of its list (without weights all are alike). `windows`
    say from which part of the lists draws come, as [start, stop) in shares of their length (of their weight, where
    there are weights): one for each epoch, the last for all that follow.
    """

    def __init__(
        self,
        i2t: Int32[np.ndarray, "images h"],
        t2i: Int32[np.ndarray, "anchors g"],
        image_of: Int32[np.ndarray, " captions"],
        *,
        i2t_weights: Float[np.ndarray, "images h"] | None = None,
        t2i_weights: Float[np.ndarray, "anchors g"] | None = None,
        strategy: str = "uniform",
        resample: bool = True,
        windows: Sequence[Sequence[float]] = WHOLE,
    ) -> None:
        if len(t2i) != len(image_of) or image_of.max() >= len(i2t):
            raise ValueError(
                f"the table has {len(i2t)} images and {len(t2i)} captions, the training split has "
                f"{image_of.max() + 1} and {len(image_of)}; it was mined on other data."
            )
        self._captions = _Lists("i2t", i2t, i2t_weights)
        self._images = _Lists("t2i", t2i, t2i_weights)
        self._image_of, self._captions_of = image_of, captions_of(image_of, len(i2t))
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
        offline_captions = self._captions.at(images, ranks[0])
        offline_images = self._images.at(captions, ranks[1])
        first = self._captions_of.offsets[offline_images]
        count = self._captions_of.offsets[offline_images + 1] - first
        own_captions = self._captions_of.ids[first + (choice * count).astype(np.int64)]
        own_images = self._image_of[offline_captions]
        corresponding = own_images == offline_images
        return Draw(images, captions, offline_captions, offline_images, own_images, own_captions, corresponding)


Offline = Literal["anchors", "quintuplet", "triples"]
"""What a loss wants of the table: the anchors' negatives, their companions as well, or triples of true pairs."""
GROUPS = {"none": 1, "anchors": 2, "quintuplet": 3}


@dataclass(frozen=True)
class Drawn:
    """A step's pairs in groups of B images and B captions, as `Draw` has them; triples are one group."""

    groups: Sequence[Group]
    corresponding: Bool[np.ndarray, " batch"] | None = None
    collision_rate: float = 0.0


def draw_groups(
    sampler: Sampler, offline: Offline, captions: Int32[np.ndarray, " batch"], rng: np.random.Generator, epoch: int
) -> Drawn:
    """The anchors with what the loss wants of the table; `epoch` counts from the first one that draws.

    Of triples, the first third of the captions is drawn, so that a step has as many pairs as any other.
    """
    if offline == "triples":
        draw = sampler.draw(captions[: max(1, len(captions) // 3)], rng, epoch)
        return Drawn([draw.triples], collision_rate=draw.collision_rate)
    draw = sampler.draw(captions, rng, epoch)
    return Drawn(draw.groups[: GROUPS[offline]], draw.corresponding, draw.collision_rate)


class _Lists:
    """The lists of one direction, every one with something to draw."""

    def __init__(
        self, direction: str, ids: Int32[np.ndarray, "anchors h"], weights: Float[np.ndarray, "anchors h"] | None
    ) -> None:
        drawable = ids >= 0 if weights is None else (ids >= 0) & (weights > 0)
        if len(empty := np.flatnonzero(~drawable.any(axis=1))):
            raise ValueError(f"{len(empty)} anchors of {direction} have no negative at all, the first is {empty[0]}.")
        self._ids, self._weights = ids, weights

    def at(
        self, anchors: Int32[np.ndarray, " batch"], ranks: Float64[np.ndarray, " batch"]
    ) -> Int32[np.ndarray, " batch"]:
        """The negative of each anchor at a rank in [0, 1)."""
        rows = self._ids[anchors]
        if self._weights is None:
            lengths: Int64[np.ndarray, " batch"] = (rows >= 0).sum(axis=1)
            places = (ranks * lengths).astype(np.int64)
        else:
            sums = np.where(rows >= 0, self._weights[anchors], 0).cumsum(axis=1, dtype=np.float64)
            places = (sums <= ranks[:, None] * sums[:, -1:]).sum(axis=1)
            last = (sums < sums[:, -1:]).sum(axis=1)  # the last place with a weight: a product may be rounded up
            places = np.minimum(places, last)
        return np.take_along_axis(rows, places[:, None], axis=1)[:, 0]
