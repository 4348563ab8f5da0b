"""Drawing offline negatives from the table: two negatives a pair and their companions, AOQ section 3.2."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Float32, Float64, Int32

from aoq.pipeline.config.sampling import check_windows
from aoq.pipeline.config.section import registered
from aoq.pipeline.search.problem import BLOCK, blocks, own_captions
from aoq.pipeline.training.drawable import Drawable

WHOLE = ((0.0, 1.0),)
MOST_REDRAWS = 100
"""After this many redraws a pair whose offline negatives still correspond goes without derived pairs."""


class Group(NamedTuple):
    """Row numbers of B images and of B captions."""

    images: Int32[np.ndarray, " group"]
    captions: Int32[np.ndarray, " group"]


@dataclass(frozen=True)
class Draw:
    """What a step sees: anchors alone, or with the groups beside them; triples are one group of true pairs.

    Anchors (i, t) are pairs. Offline negatives (i_off, t_off) are an image for each caption and a caption for each
    image. Companions (i_own, t_own) are the image of each offline caption and a caption of each offline image.
    """

    groups: Sequence[Group]
    corresponding: Bool[np.ndarray, " batch"] | None = None
    """True where the two offline negatives are a true pair; both derived pairs then are too."""
    collision_rate: float = 0.0
    """The fraction of first draws in which they were."""
    match_probability: Float32[np.ndarray, "2 batch"] | None = None
    """Of soft margins: that each image matches its offline caption (row 0), and each caption its offline image."""


Offline = Literal["anchors", "quintuplet", "triples"]
"""What a loss wants of the table: the anchors' negatives, their companions as well, or triples of true pairs."""
GROUPS = {"none": 1, "anchors": 2, "quintuplet": 3}
Ranks = Float64[np.ndarray, "2 batch"]
"""Where in its list each draw falls, in [0, 1): row 0 for the captions of images, row 1 for images of captions.

In a list whose negatives have weights, shares of the whole weight take the place of shares of the length.
"""


def normal_ranks(rng: np.random.Generator, batch: int) -> Ranks:
    """Two draws around the middle of the list, N(1/2, 1/4) within [0, 1): the first ranks, where false
    negatives gather, come up less often (AOQ supplement, which gives no numbers)."""
    ranks = rng.normal(0.5, 0.25, (2, batch))
    while (outside := (ranks < 0) | (ranks >= 1)).any():
        ranks[outside] = rng.normal(0.5, 0.25, int(outside.sum()))
    return ranks


STRATEGIES: dict[str, Callable[[np.random.Generator, int], Ranks]] = {
    "uniform": lambda rng, batch: rng.random((2, batch)),
    "coupled": lambda rng, batch: np.repeat(rng.random((1, batch)), 2, axis=0),
    "normal": normal_ranks,
    "weighted": lambda rng, batch: rng.random((2, batch)),
}
"""Two independent draws, as in the paper; or `coupled`, one for both lists, as in the official code (n and n // 5)."""


class Sampler:
    """Draws from lists of negatives: `i2t` holds captions of each image, `t2i` images of each caption.

    `windows` say from which part of the lists draws come, as [start, stop) in shares of their length (of their weight,
    where there are weights): one for each epoch, the last for all that follow. Images of one `identity` are the same
    photograph.
    """

    def __init__(
        self,
        i2t: Drawable,
        t2i: Drawable,
        image_of: Int32[np.ndarray, " captions"],
        *,
        strategy: str = "uniform",
        resample: bool = True,
        windows: Sequence[Sequence[float]] = WHOLE,
        identity: Int32[np.ndarray, " images"] | None = None,
    ) -> None:
        images, captions = len(i2t.ids), len(t2i.ids)
        if captions != len(image_of) or image_of.max() >= images:
            raise ValueError(
                f"the table has {images} images and {captions} captions, the training split has "
                f"{image_of.max() + 1} and {len(image_of)}; it was mined on other data."
            )
        for direction, lists in (("i2t", i2t), ("t2i", t2i)):
            if len(empty := lists.empty):
                raise ValueError(
                    f"{len(empty)} anchors of {direction} have no negative at all, the first is {empty[0]}."
                )
        check_windows(windows)
        _check_ids(i2t, t2i, image_of)
        self._i2t, self._t2i = i2t, t2i
        self._image_of, self._captions_of, self._identity = image_of, own_captions(image_of, images), identity
        self._strategy = registered("strategy", strategy, STRATEGIES, STRATEGIES)
        self._resample, self._windows = resample, windows

    def draw(self, captions: Int32[np.ndarray, " batch"], rng: np.random.Generator, epoch: int = 0) -> Draw:
        """Negatives and companions for the pairs of these captions; the same rng state gives the same draw.

        `epoch` counts from the first that draws. Without `resample` the first draws are kept, and none counts as
        corresponding.
        """
        start, stop = self._windows[min(epoch, len(self._windows) - 1)]

        def ranks_of(batch: int) -> Ranks:
            return start + self._strategy(rng, batch) * (stop - start)

        ranks = ranks_of(len(captions))
        groups = self.at(captions, ranks, rng.random(len(captions)))
        first = corresponding = self._corresponding(groups)
        for _ in range(MOST_REDRAWS if self._resample else 0):
            if not corresponding.any():
                break
            ranks[:, corresponding] = ranks_of(int(corresponding.sum()))
            groups = self.at(captions, ranks, rng.random(len(captions)))
            corresponding = self._corresponding(groups)
        probability = self._match_probability(captions, ranks)
        return Draw(groups, corresponding & self._resample, float(first.mean()), probability)

    def at(
        self, captions: Int32[np.ndarray, " batch"], ranks: Ranks, choice: Float64[np.ndarray, " batch"]
    ) -> list[Group]:
        """The groups at given places: `ranks` in the lists, `choice` in [0, 1) among the offline image's captions."""
        anchors = Group(self._image_of[captions], captions)
        offline = Group(self._t2i.at(captions, ranks[1]), self._i2t.at(anchors.images, ranks[0]))
        first = self._captions_of.offsets[offline.images]
        count = self._captions_of.offsets[offline.images + 1] - first
        own_captions = self._captions_of.ids[first + (choice * count).astype(np.int64)]
        return [anchors, offline, Group(self._image_of[offline.captions], own_captions)]

    def _match_probability(
        self, captions: Int32[np.ndarray, " batch"], ranks: Ranks
    ) -> Float32[np.ndarray, "2 batch"] | None:
        """That the pairs drawn at these ranks match, where the lists say it."""
        of_captions, of_images = self._i2t.match_probability, self._t2i.match_probability
        if of_captions is None or of_images is None:
            return None
        images = self._image_of[captions]
        places = self._i2t.places(images, ranks[0]), self._t2i.places(captions, ranks[1])
        return np.stack([of_captions[images, places[0]], of_images[captions, places[1]]])

    def _corresponding(self, groups: Sequence[Group]) -> Bool[np.ndarray, " batch"]:
        """Where the offline negatives of both sides are a true pair: of one image, or of copies of one photograph."""
        _, offline, companions = groups
        rows = (companions.images, offline.images)
        one, other = rows if self._identity is None else (self._identity[images] for images in rows)
        return one == other

    def draw_for(
        self, offline: Offline, captions: Int32[np.ndarray, " batch"], rng: np.random.Generator, epoch: int
    ) -> Draw:
        """The anchors with what the loss wants of the table; `epoch` counts from the first one that draws.

        Of triples, (i, t), (i_own, t_off) and (i_off, t_own), the first third of the captions is drawn, so that a step
        has as many pairs as any other.
        """
        if offline != "triples":
            draw = self.draw(captions, rng, epoch)
            return replace(draw, groups=draw.groups[: GROUPS[offline]])
        draw = self.draw(captions[: max(1, len(captions) // 3)], rng, epoch)
        anchors, negatives, own = draw.groups
        images = np.concatenate([anchors.images, own.images, negatives.images])
        triples = Group(images, np.concatenate([anchors.captions, negatives.captions, own.captions]))
        return Draw([triples], collision_rate=draw.collision_rate)


def _check_ids(i2t: Drawable, t2i: Drawable, image_of: Int32[np.ndarray, " captions"]) -> None:
    """Refuse ids of nothing, and own positives that could be drawn, whatever table or weights they come from."""
    images = np.arange(len(i2t.ids), dtype=np.int32)
    for anchor, lists, candidate, own, image_of_candidate in (
        ("image", i2t, "caption", images, image_of),
        ("caption", t2i, "image", image_of, images),
    ):
        for start, stop in blocks(len(lists.ids), BLOCK):
            ids, listed = lists.ids[start:stop], lists.ids[start:stop] >= 0
            broken = (ids < -1) | (ids >= len(image_of_candidate))
            broken[:, 1:] |= listed[:, 1:] & ~listed[:, :-1]
            if broken.any():
                row, place = np.argwhere(broken)[0]
                raise ValueError(
                    f"the list of {anchor} {start + row} names {candidate} {ids[row, place]} at rank {place + 1}, and "
                    f"there are {candidate}s 0 to {len(image_of_candidate) - 1}, with -1 only at a list's end; the "
                    "table is damaged or was mined on other data, so mine again."
                )
            is_own = listed & (image_of_candidate[ids] == own[start:stop, None])
            if lists.weights is not None:
                is_own &= lists.weights[start:stop] > 0
            if is_own.any():
                row, place = np.argwhere(is_own)[0]
                raise ValueError(
                    f"the list of {anchor} {start + row} has {candidate} {ids[row, place]} as a negative, and they are "
                    "a true pair; the table is damaged or was mined with other pairs, so mine again with these."
                )
