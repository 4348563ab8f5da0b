"""Drawing offline negatives from the table: two negatives a pair and their companions, AOQ section 3.2."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int32, Int64

from pipeline.data.pairs import CaptionsOf
from pipeline.mining.table import NegativeTable

MOST_REDRAWS = 100
"""After so many draws a pair whose every negative is the other's positive keeps the last one."""


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
    collision_rate: float
    """The share of first draws in which the two negatives were each other's positives."""

    @property
    def groups(self) -> list[Group]:
        """Anchors, offline negatives, companions: each B images and B captions."""
        return [
            (self.images, self.captions),
            (self.offline_images, self.offline_captions),
            (self.own_images, self.own_captions),
        ]


Group = tuple[Int32[np.ndarray, " batch"], Int32[np.ndarray, " batch"]]
Ranks = Float64[np.ndarray, "2 batch"]
"""Where in its list each draw falls, in [0, 1): row 0 for the captions of images, row 1 for images of captions."""


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
}


class Sampler:
    """Draws from the head of each list of a table; `h_captions` and `h_images` narrow it."""

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
    ) -> None:
        if (len(table.i2t), len(table.t2i)) != (len(captions_of.offsets) - 1, len(image_of)):
            raise ValueError(
                f"the table has {len(table.i2t)} images and {len(table.t2i)} captions, the training split has "
                f"{len(captions_of.offsets) - 1} and {len(image_of)}; it was mined on other data."
            )
        self._captions = _head("i2t", table.i2t.negative_ids, h_captions, "h_captions")
        self._images = _head("t2i", table.t2i.negative_ids, h_images, "h_images")
        self._image_of, self._captions_of = image_of, captions_of
        self._strategy, self._resample = STRATEGIES[strategy], resample

    def draw(self, captions: Int32[np.ndarray, " batch"], rng: np.random.Generator) -> Draw:
        """Negatives and companions for the pairs of these captions; the same rng state gives the same draw."""
        ranks = self._strategy(rng, len(captions))
        draw = self.at(captions, ranks, rng.random(len(captions)))
        colliding = draw.own_images == draw.offline_images
        rate = float(colliding.mean())
        for _ in range(MOST_REDRAWS if self._resample else 0):
            if not colliding.any():
                break
            ranks[:, colliding] = self._strategy(rng, int(colliding.sum()))
            draw = self.at(captions, ranks, rng.random(len(captions)))
            colliding = draw.own_images == draw.offline_images
        return Draw(**{**vars(draw), "collision_rate": rate})

    def at(self, captions: Int32[np.ndarray, " batch"], ranks: Ranks, choice: Float64[np.ndarray, " batch"]) -> Draw:
        """The draw at given places: `ranks` in the lists, `choice` in [0, 1) among the offline image's captions."""
        images = self._image_of[captions]
        offline_captions = _entry(self._captions, images, ranks[0])
        offline_images = _entry(self._images, captions, ranks[1])
        first = self._captions_of.offsets[offline_images]
        count = self._captions_of.offsets[offline_images + 1] - first
        own_captions = self._captions_of.order[first + (choice * count).astype(np.int64)]
        own_images = self._image_of[offline_captions]
        return Draw(images, captions, offline_captions, offline_images, own_images, own_captions, 0.0)


def _entry(
    lists: Int32[np.ndarray, "anchors h"],
    anchors: Int32[np.ndarray, " batch"],
    ranks: Float64[np.ndarray, " batch"],
) -> Int32[np.ndarray, " batch"]:
    rows = lists[anchors]
    lengths: Int64[np.ndarray, " batch"] = (rows >= 0).sum(axis=1)
    return np.take_along_axis(rows, (ranks * lengths).astype(np.int64)[:, None], axis=1)[:, 0]


def _head(
    direction: str, ids: Int32[np.ndarray, "anchors h"], h: int | None, option: str
) -> Int32[np.ndarray, "anchors head"]:
    if h is not None and h > ids.shape[1]:
        raise ValueError(
            f"[sampling] {option} = {h}, but the table keeps {ids.shape[1]} per anchor in {direction}; "
            f"lower it, or raise [mining] {option} and mine again."
        )
    if len(empty := np.flatnonzero(ids[:, 0] < 0)):
        raise ValueError(f"{len(empty)} anchors of {direction} have no negative at all, the first is {empty[0]}.")
    return ids[:, :h]
