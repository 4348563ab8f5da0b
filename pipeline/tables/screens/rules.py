"""The rules of a screen, each a question about listed negatives; `aoq.pipeline.config.screen` says what they mean."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float32, Float64, Int32, Int64, UInt32

from aoq.pipeline.config.screen import RULES, Screen
from aoq.pipeline.search.lists import NegativeLists
from aoq.pipeline.search.problem import DIRECTIONS, OTHER, Direction, Positives, blocks
from aoq.pipeline.tables.pairs import Pairs, is_among, pair_keys
from aoq.pipeline.tables.screens.likeness import Texts, nearest_own
from aoq.pipeline.tables.table import NegativeTable

BLOCK_ENTRIES = 2**20


@dataclass(frozen=True)
class Entries:
    """Listed negatives, list by list; `anchors` and `places` say where each stands in the table."""

    direction: Direction
    anchors: Int64[np.ndarray, " entries"]
    places: Int64[np.ndarray, " entries"]
    candidates: Int64[np.ndarray, " entries"]
    scores: Float32[np.ndarray, " entries"]
    positive_score: Float32[np.ndarray, " entries"]
    """The anchor's lowest-scoring positive's; NaN without one."""
    images: Int64[np.ndarray, " entries"]
    captions: Int64[np.ndarray, " entries"]

    @property
    def below_positive(self) -> Float64[np.ndarray, " entries"]:
        """How far under the anchor's lowest-scoring positive; NaN without one, which is below any margin."""
        return self.positive_score.astype(np.float64) - self.scores


def entry_blocks(direction: Direction, lists: NegativeLists) -> Iterator[Entries]:
    """All of them, some lists at a time."""
    for start, stop in blocks(len(lists), max(1, BLOCK_ENTRIES // max(1, lists.h))):
        part = lists[start:stop]
        rows, places = np.nonzero(part.negative_ids >= 0)
        ids, scores = part.negative_ids[rows, places].astype(np.int64), part.scores[rows, places]
        anchors = rows + start
        pairs = (anchors, ids) if direction == "i2t" else (ids, anchors)
        yield Entries(direction, anchors, places, ids, scores, part.positive_score[rows], *pairs)


@dataclass(frozen=True)
class Knowledge:
    """What rules may ask for besides the table, as far as it is there; vectors are unit vectors of one model."""

    texts: Sequence[str] | None = None
    images: Float32[np.ndarray, "images D"] | None = None
    captions: Float32[np.ndarray, "captions D"] | None = None
    matches: Pairs | None = None
    """Pairs known to match, rows (image, caption)."""
    pair_probabilities: Float32[np.ndarray, " captions"] | None = None
    """That the caption and the image it is paired with belong together."""


KNOWN = {
    "texts": "the captions' texts (--texts)",
    "images": "the images' vectors (--images)",
    "captions": "the captions' vectors (--captions)",
    "matches": "a file of pairs known to match",
    "pair_probabilities": "how probably the captions' pairs are right (--pair-probabilities)",
}
"""How a user gives each field of Knowledge."""


@dataclass(frozen=True)
class Context:
    """What rules look at besides the entries."""

    table: NegativeTable
    known: Knowledge

    @cached_property
    def own(self) -> dict[Direction, Positives]:
        """The captions of images (i2t), and the images of captions (t2i)."""
        return {direction: self.table.own(direction) for direction in DIRECTIONS}

    @cached_property
    def texts(self) -> Texts:
        return Texts(self.known.texts or (), self.own["i2t"])

    @cached_property
    def matches(self) -> Int64[np.ndarray, " pairs"]:
        assert self.known.matches is not None  # check_knowledge has looked
        images, captions = self.known.matches.T
        return np.unique(pair_keys(images, captions, len(self.table.t2i)))


def is_match(entries: Entries, _: str, context: Context) -> Bool[np.ndarray, " entries"]:
    return is_among(pair_keys(entries.images, entries.captions, len(context.table.t2i)), context.matches)


def is_like_an_own_caption(entries: Entries, least: float, context: Context) -> Bool[np.ndarray, " entries"]:
    vectors = context.known.captions
    assert vectors is not None  # check_knowledge has looked
    return nearest_own(vectors, entries.captions, entries.images, context.own["i2t"]) >= least


def is_like_the_own_image(entries: Entries, least: float, context: Context) -> Bool[np.ndarray, " entries"]:
    vectors = context.known.images
    assert vectors is not None  # check_knowledge has looked
    return nearest_own(vectors, entries.images, entries.captions, context.own["t2i"]) >= least


def is_doubtful(entries: Entries, least: float, context: Context) -> Bool[np.ndarray, " entries"]:
    """A caption of no image has no pair to doubt."""
    right = context.known.pair_probabilities
    assert right is not None  # check_knowledge has looked
    return ((right < least) & (np.diff(context.own["t2i"].offsets) > 0))[entries.captions]


def is_mutual(entries: Entries, most: int, context: Context) -> Bool[np.ndarray, " entries"]:
    found = np.zeros(len(entries.anchors), dtype=np.bool_)
    first = np.flatnonzero(entries.places < most)
    theirs = context.table[OTHER[entries.direction]].negative_ids[entries.candidates[first], :most]
    found[first] = (theirs == entries.anchors[first, None]).any(axis=1)
    return found


class Rule(NamedTuple):
    """What a rule asks of negatives, given its value, and which field of Knowledge it needs."""

    asks: Callable[[Entries, Any, Context], Bool[np.ndarray, " entries"]]
    needs: str = ""


QUESTIONS: dict[str, Rule] = {
    "range_min": Rule(lambda entries, first, _: entries.places < first),
    "range_max": Rule(lambda entries, end, _: entries.places >= end),
    "min_score": Rule(lambda entries, least, _: entries.scores < least),
    "max_score": Rule(lambda entries, most, _: entries.scores > most),
    "positives": Rule(is_match, "matches"),
    "same_text": Rule(lambda entries, _, context: context.texts.same(entries.images, entries.captions), "texts"),
    "near_text": Rule(
        lambda entries, least, context: context.texts.likeness(entries.images, entries.captions) >= least, "texts"
    ),
    "caption_similarity": Rule(is_like_an_own_caption, "captions"),
    "image_similarity": Rule(is_like_the_own_image, "images"),
    "mutual_rank": Rule(is_mutual),
    "doubtful_pair": Rule(is_doubtful, "pair_probabilities"),
    "absolute_margin": Rule(lambda entries, margin, _: entries.below_positive < margin),
    "relative_margin": Rule(lambda entries, share, _: entries.below_positive < share * np.abs(entries.positive_score)),
}
"""All rules but `max_uses`, which asks about a whole direction."""


def bit(rule: str) -> int:
    """The flag of a rule."""
    return 1 << RULES.index(rule)


def rules_of(flags: int) -> tuple[str, ...]:
    """The rules whose bits are set.

    >>> rules_of(bit("same_text") | bit("mutual_rank"))
    ('same_text', 'mutual_rank')
    """
    return tuple(rule for rule in RULES if flags & bit(rule))


def check_knowledge(screen: Screen, known: Knowledge) -> None:
    """Refuse a rule that needs what is not known."""
    for rule in screen.rules:
        needs = QUESTIONS[rule].needs if rule in QUESTIONS else ""
        if needs and getattr(known, needs) is None:
            raise ValueError(f"the rule {rule} needs {KNOWN[needs]}; give them, or leave out the rule.")


def flag_negatives(context: Context, direction: Direction, screen: Screen) -> UInt32[np.ndarray, "anchors h"]:
    """Give every listed negative the bits of the rules that it meets; 0 for padding."""
    lists = context.table[direction]
    flags = np.zeros(lists.negative_ids.shape, dtype=np.uint32)
    for entries in entry_blocks(direction, lists):
        found = np.zeros(len(entries.anchors), dtype=np.uint32)
        for rule in screen.rules:
            if rule in QUESTIONS:
                found[QUESTIONS[rule].asks(entries, getattr(screen, rule), context)] |= bit(rule)
        flags[entries.anchors, entries.places] = found
    if screen.max_uses is not None:
        left = (flags == 0) & (lists.negative_ids >= 0)
        flags[_overused(lists.negative_ids, left, screen.max_uses)] |= bit("max_uses")
    return flags


def _overused(
    ids: Int32[np.ndarray, "anchors h"], left: Bool[np.ndarray, "anchors h"], most: int
) -> tuple[Int64[np.ndarray, " beyond"], Int64[np.ndarray, " beyond"]]:
    """Anchors and places of what is left beyond each candidate's `most` best places: high ranks, then low anchors."""
    places, anchors = np.nonzero(left.T)
    candidates = ids[anchors, places]
    order = np.argsort(candidates, kind="stable")
    ordered = candidates[order]
    uses_before = np.arange(len(order)) - np.searchsorted(ordered, ordered)
    beyond = order[uses_before >= most]
    return anchors[beyond], places[beyond]
