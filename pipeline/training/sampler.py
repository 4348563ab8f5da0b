"""Draw offline negatives from the table: two negatives per pair and their companions, AOQ section 3.2."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float32, Float64, Int, Int32, Int64, Integer

from aoq.pipeline.config.losses import Offline
from aoq.pipeline.config.section import check_registered
from aoq.pipeline.config.tables import check_windows
from aoq.pipeline.search.positives import Positives, matching_pairs, unique_pairs, with_itself
from aoq.pipeline.search.problem import DIRECTIONS, READ_ROWS, Direction, blocks
from aoq.pipeline.tables.pairs import SIDES, Pairs, group_positives, is_among, listed_keys, pair_keys
from aoq.pipeline.training.drawable import BatchRows, Drawable, HighestScores

WHOLE_LISTS = ((0.0, 1.0),)
MOST_REDRAWS = 100
"""After this many redraws, a pair whose offline negatives still correspond has no derived pairs."""


@dataclass(frozen=True)
class Draw:
    """Rows (image, caption) of a step: anchors (i, t), offline negatives (i_off, t_off), and companions (i_own, t_own).

    Companions are an image of each offline caption and a caption of each offline image. Triples are one group of pairs.
    """

    groups: Int32[np.ndarray, "groups batch 2"]
    corresponding: Bool[np.ndarray, " batch"] | None = None
    """True where a derived pair, (i_off, t_off) or (i_own, t_own), is true. If each caption has one image, either both
    are true or neither is."""
    collision_rate: float = 0.0
    """Fraction of first draws with such a derived pair."""
    match_probability: Float32[np.ndarray, "2 batch"] | None = None
    """Probability that each image matches its offline caption (row 0), each caption its image; for soft margins."""
    excluded: Bool[np.ndarray, "2 batch columns"] | None = None
    """True where a drawn caption does not count as a negative of an image (row 0), or an image as one of a caption (row
    1), as `Sampler.excluded` says. A column per group or, shared, per group and anchor."""
    listed_scores: Float32[np.ndarray, "2 batch candidates"] | None = None
    """Scores of each anchor's own pair and of its negatives in the last groups: row 0 for images, row 1 for captions.
    -inf for a negative that a short list repeats."""


RelativeRanks = Float64[np.ndarray, "2 batch"]
"""Place of each draw in its list, in [0, 1): row 0 for the captions of images, row 1 for images of captions.

In a list whose negatives have weights, places are fractions of the total weight instead of the length.
"""


def _uniform_ranks(rng: np.random.Generator, batch: int) -> RelativeRanks:
    """Draw two independent ranks, as in the paper."""
    return rng.random((2, batch))


def _coupled_ranks(rng: np.random.Generator, batch: int) -> RelativeRanks:
    """Draw one rank for both lists, as in the official code (n and n // 5)."""
    return np.repeat(rng.random((1, batch)), 2, axis=0)


def _normal_ranks(rng: np.random.Generator, batch: int) -> RelativeRanks:
    """Draw two ranks from N(1/2, 1/4) within [0, 1): fewer of the first ranks, which hold most false negatives."""
    ranks = rng.normal(0.5, 0.25, (2, batch))  # the AOQ supplement gives no numbers
    while (outside := (ranks < 0) | (ranks >= 1)).any():
        ranks[outside] = rng.normal(0.5, 0.25, int(outside.sum()))
    return ranks


STRATEGIES: dict[str, Callable[[np.random.Generator, int], RelativeRanks]] = {
    "uniform": _uniform_ranks,
    "coupled": _coupled_ranks,
    "normal": _normal_ranks,
    "weighted": _uniform_ranks,
}


class Sampler:
    """Draws from lists of negatives: `i2t` holds captions of each image, `t2i` images of each caption.

    `windows` limit draws to a part of the lists, as [start, stop) in fractions of their length (or weight): one per
    epoch, the last for all that follow. Images of one `identity` are the same photograph.

    `positives` are the image of each caption, or rows (image, caption), of which either side may have several. Anchors
    are rows of `pairs`, by caption and then by image; if every caption has one image, these are rows of captions.

    With `negatives`, a draw without companions has as many groups of offline negatives, each from its part of the
    lists; `shared`, they are columns of all anchors. `matches` are further positives, rows (image, caption): the
    image of a caption that has any is drawn among its own and these. `highest_scores` limit the scores of the
    negatives that are drawn for each caption's image.
    """

    def __init__(
        self,
        i2t: Drawable,
        t2i: Drawable,
        positives: Integer[np.ndarray, "*shape"],
        *,
        strategy: str = "uniform",
        resample: bool = True,
        windows: Sequence[Sequence[float]] = WHOLE_LISTS,
        identity: Int32[np.ndarray, " images"] | None = None,
        one_set: bool = False,
        negatives: int | None = None,
        shared: bool = True,
        matches: Pairs | None = None,
        highest_scores: Float64[np.ndarray, " captions"] | None = None,
    ) -> None:
        images, captions = len(i2t.ids), len(t2i.ids)
        self.pairs = unique_pairs(positives, images, captions)
        all_pairs = self.pairs if matches is None else np.concatenate([self.pairs, matches])
        i2t.require_negatives("i2t", all_pairs[:, 0])
        t2i.require_negatives("t2i", self.pairs[:, 1])
        check_windows(windows)
        own = with_itself(self.pairs, images) if one_set else self.pairs
        keys = np.unique(pair_keys(own[:, 0], own[:, 1], captions))
        self._i2t, self._t2i = i2t, t2i
        for direction, lists, candidates in zip(DIRECTIONS, (i2t, t2i), (captions, images), strict=True):
            _check_ids(direction, lists, candidates, keys, captions)
        self._images_of = group_positives("t2i", self.pairs, captions)
        self._captions_of = group_positives("i2t", self.pairs, images)
        if identity is not None:
            own = matching_pairs(positives, identity)
            keys = np.unique(pair_keys(own[:, 0], own[:, 1], captions))
        self._matching: Positives | None = None
        if matches is not None:
            self._matching = group_positives("t2i", all_pairs, captions)
            self._has_match = np.isin(np.arange(captions), matches[:, 1])
            keys = np.union1d(keys, pair_keys(matches[:, 0], matches[:, 1], captions))
        self._true = keys
        if negatives is not None:
            flagged = [
                listed_keys(direction, lists.suspects[:, 0], lists.suspects[:, 1], captions)
                for direction, lists in zip(DIRECTIONS, (i2t, t2i), strict=True)
            ]
            self._no_columns = np.unique(np.concatenate([keys, *flagged]))
        self._negatives, self._shared, self._highest_scores = negatives, shared, highest_scores
        check_registered("strategy", strategy, STRATEGIES)
        self._strategy, self._resample, self._windows = STRATEGIES[strategy], resample, windows

    def are_pairs(self, images: np.ndarray, captions: np.ndarray) -> Bool[np.ndarray, "*batch"]:
        """Mark images and captions that are true pairs, or in one set the same row, and so are not negatives."""
        return is_among(pair_keys(images, captions, len(self._t2i.ids)), self._true)

    def matching(self, pairs: Pairs) -> Bool[np.ndarray, "batch batch"] | None:
        """Mark the images and captions of these pairs that match, if there are further positives."""
        return None if self._matching is None else self.are_pairs(pairs[:, :1], pairs[None, :, 1])

    def draw(self, rows: BatchRows, rng: np.random.Generator, epoch: int = 0, *, companions: bool = True) -> Draw:
        """Draw negatives and companions for some pairs; `epoch` counts from the first that draws.

        Without `companions` negatives need no positive of their own. The first draws are then kept, since the paper
        draws again for the derived pairs of eq. (4) alone, and none counts as corresponding.
        """
        resample = companions and self._resample
        pairs = self._draw_anchors(rows, rng)
        start, stop = self._window(epoch)
        ranks, corresponding, collisions = np.empty((2, len(rows))), np.ones(len(rows), np.bool_), 0.0
        for turn in range(1 + (MOST_REDRAWS if resample else 0)):
            ranks[:, corresponding] = start + self._strategy(rng, int(corresponding.sum())) * (stop - start)
            groups = self.at(pairs, ranks, rng.random(len(rows)), companions=companions)
            corresponding = np.logical_or.reduce(self.are_pairs(groups[1:, :, 0], groups[1:, :, 1]))
            collisions = collisions if turn else float(corresponding.mean())
            if not corresponding.any():
                break
        drawn = zip((self._i2t, self._t2i), pairs.T, ranks, strict=True)
        of_captions, of_images = (lists.probability_at(anchors, places) for lists, anchors, places in drawn)
        probability = None if of_captions is None or of_images is None else np.stack([of_captions, of_images])
        return Draw(groups, corresponding & resample, collisions, probability)

    def at(
        self, pairs: Pairs, ranks: RelativeRanks, choice: Float64[np.ndarray, " batch"], *, companions: bool = True
    ) -> Int32[np.ndarray, "groups batch 2"]:
        """Return the groups at these places: `ranks` in the lists, `choice` in [0, 1) among a negative's positives."""
        images, captions = pairs.T
        other_images = self._t2i.at(captions, ranks[1])
        other_captions = self._i2t.at(images, ranks[0], self._highest(captions))
        sides = [images, other_images], [captions, other_captions]
        if companions:
            sides[0].append(_choose(self._images_of, other_captions, choice))
            sides[1].append(_choose(self._captions_of, other_images, choice))
        return np.stack([np.stack(side) for side in sides], axis=2)

    def draw_for(self, offline: Offline, rows: BatchRows, rng: np.random.Generator, epoch: int) -> Draw:
        """Draw the anchors with the groups that a loss needs; for triples, only the first third of the pairs draws.

        Each makes three, (i, t), (i_own, t_off) and (i_off, t_own), so that all steps are of one size.
        """
        if offline == "none":
            return Draw(self._draw_anchors(rows, rng)[None])
        if offline == "anchors" and self._negatives is not None:
            return self._draw_columns(rows, self._negatives, rng, epoch)
        if offline != "triples":
            return self.draw(rows, rng, epoch, companions=offline == "quintuplet")
        draw = self.draw(rows[: max(1, len(rows) // 3)], rng, epoch)
        triples = np.stack([draw.groups[[0, 2, 1], :, 0], draw.groups[:, :, 1]], axis=-1)
        return Draw(triples.reshape(1, -1, 2), collision_rate=draw.collision_rate)

    def _draw_anchors(self, rows: BatchRows, rng: np.random.Generator) -> Pairs:
        """Return the pairs; of captions with further positives, the image is drawn among all that match."""
        pairs = self.pairs[rows]
        if self._matching is None:
            return pairs
        images = _choose(self._matching, captions := pairs[:, 1], rng.random(len(rows)))
        return np.column_stack([np.where(self._has_match[captions], images, pairs[:, 0]), captions])

    def _draw_columns(self, rows: BatchRows, count: int, rng: np.random.Generator, epoch: int) -> Draw:
        """Draw `count` negatives of each anchor, each from a part of its list, and mark columns that are none."""
        start, stop = self._window(epoch)
        pairs = self._draw_anchors(rows, rng)
        # The same place in each part, so that lists as long as the count repeat none.
        place, nowhere = self._strategy(rng, len(rows)), np.zeros(len(rows))
        ranks = [start + (part + place) / count * (stop - start) for part in range(count)]
        groups = [self.at(pairs, each, nowhere, companions=False) for each in ranks]
        drawn = np.stack([groups[0][0], *(group[1] for group in groups)])
        return Draw(drawn, excluded=self.excluded(drawn))

    def excluded(self, groups: Int[np.ndarray, "groups batch 2"]) -> Bool[np.ndarray, "2 batch columns"]:
        """Mark columns that do not count as negatives of the anchors, the first group.

        These are repetitions, and among negatives drawn for other anchors true pairs and suspected ones, never drawn.
        """
        anchors, drawn = groups[0], groups[1:]
        repeated = np.zeros(drawn.shape, np.bool_)
        repeated[1:] = drawn[1:] == drawn[:-1]  # a list shorter than the count
        if not self._shared:
            return repeated.transpose(2, 1, 0)[::-1].copy()
        (images, captions), (others, texts) = anchors.T[..., None], drawn.reshape(-1, 2).T[:, None]
        keys = [pair_keys(*pairs, len(self._t2i.ids)) for pairs in ((images, texts), (others, captions))]
        masks = np.stack([is_among(each, self._no_columns) for each in keys])
        rows = np.arange(len(anchors))
        masks.reshape(2, len(rows), len(drawn), len(rows))[:, rows, :, rows] = False  # drawn for this anchor
        return masks | repeated.reshape(-1, 2).T[::-1, None]

    def _highest(self, captions: BatchRows) -> HighestScores | None:
        return None if self._highest_scores is None else self._highest_scores[captions]

    def _window(self, epoch: int) -> Sequence[float]:
        return self._windows[max(0, min(epoch, len(self._windows) - 1))]

    def with_lists(self, draw: Draw, count: int, rng: np.random.Generator, epoch: int = 0) -> Draw:
        """Add `count` negatives of each anchor as further groups, each from a part of its list, with their scores.

        The score of an anchor's own pair is that of the pair's caption with its lowest image, in both directions.
        """
        start, stop = self._window(epoch)
        ranks = (np.arange(count)[:, None, None] + rng.random((count, 2, draw.groups.shape[1]))) / count
        ranks = start + ranks * (stop - start)
        own_images, own_captions = draw.groups[0].T
        captions, of_images = self._i2t.listed(own_images, ranks[:, 0], self._highest(own_captions))
        images, of_captions = self._t2i.listed(own_captions, ranks[:, 1])
        assert self._t2i.positive_score is not None  # set for all lists of a table
        own = self._t2i.positive_score[own_captions]  # an image's list serves all of its captions
        scores = np.stack([np.column_stack([own, listed]) for listed in (of_images, of_captions)])
        groups = np.concatenate([draw.groups, np.stack([images, captions], axis=-1)])
        return replace(draw, groups=groups, listed_scores=scores)


def _choose(own: Positives, rows: BatchRows, choice: Float64[np.ndarray, " batch"]) -> BatchRows:
    """Choose one of each row's positives, at a place in [0, 1) among them."""
    first = own.offsets[rows]
    return own.ids[first + (choice * (own.offsets[rows + 1] - first)).astype(np.int64)]


def _check_ids(
    direction: Direction, lists: Drawable, candidates: int, true: Int64[np.ndarray, " keys"], captions: int
) -> None:
    """Refuse ids without a candidate, and positives that could be drawn, whatever table or weights they come from."""
    anchor, candidate = (side.removesuffix("s") for side in SIDES[direction])
    for start, stop in blocks(len(lists.ids), READ_ROWS):
        ids, listed = lists.ids[start:stop], lists.ids[start:stop] >= 0
        is_broken = (ids < -1) | (ids >= candidates)
        is_broken[:, 1:] |= listed[:, 1:] & ~listed[:, :-1]
        if is_broken.any():
            row, place = np.argwhere(is_broken)[0]
            raise ValueError(
                f"the list of {anchor} {start + row} names {candidate} {ids[row, place]} at rank {place + 1}, but "
                f"there are {candidate}s 0 to {candidates - 1}, with -1 only at a list's end; the "
                "table is damaged or was mined on other data, so mine again."
            )
        keys = listed_keys(direction, np.arange(start, stop)[:, None], ids, captions)
        is_own = is_among(keys, true) & lists.may_draw(slice(start, stop))
        if is_own.any():
            row, place = np.argwhere(is_own)[0]
            raise ValueError(
                f"the list of {anchor} {start + row} has {candidate} {ids[row, place]} as a negative, but they are "
                "a true pair or judged to match; give it weight 0, or mine again with these pairs."
            )
