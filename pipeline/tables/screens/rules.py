"""The rules of a screen, each a question about listed negatives; `aoq.pipeline.config.screen` says what they mean."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Int32, UInt16

from aoq.pipeline.config.screen import RULES, Screen
from aoq.pipeline.search.problem import OTHER, Direction
from aoq.pipeline.tables.pairs import is_among, pair_keys
from aoq.pipeline.tables.screens.entries import Entries, Knowledge, entry_blocks
from aoq.pipeline.tables.screens.likeness import caption_likeness, image_likeness
from aoq.pipeline.tables.screens.texts import Texts
from aoq.pipeline.tables.table import NegativeTable

NEEDS = {
    "positives": ("matches", "a file of pairs known to match"),
    "same_text": ("texts", "the captions' texts (--texts)"),
    "near_text": ("texts", "the captions' texts (--texts)"),
    "caption_similarity": ("captions", "the captions' vectors (--captions)"),
    "image_similarity": ("images", "the images' vectors (--images)"),
    "doubtful_pair": ("pair_probabilities", "how probably the captions' pairs are right (--pair-probabilities)"),
}
"""What a rule has to know besides the table."""


@dataclass(frozen=True)
class Context:
    """What rules look at besides the entries."""

    table: NegativeTable
    knowledge: Knowledge

    @cached_property
    def texts(self) -> Texts:
        return Texts(self.knowledge)

    def is_match(self, entries: Entries) -> Bool[np.ndarray, " entries"]:
        known = self.knowledge
        assert known.matches is not None  # flag_negatives has looked
        return is_among(pair_keys(entries.images, entries.captions, len(known.image_of)), known.matches)

    def is_doubtful(self, entries: Entries, least: float) -> Bool[np.ndarray, " entries"]:
        """A caption of no image has no pair to doubt."""
        known = self.knowledge
        assert known.pair_probabilities is not None  # flag_negatives has looked
        doubtful = (known.pair_probabilities < least) & (known.image_of >= 0)
        return doubtful[entries.captions]

    def is_mutual(self, entries: Entries, most: int) -> Bool[np.ndarray, " entries"]:
        found = np.zeros(len(entries.anchors), dtype=np.bool_)
        first = np.flatnonzero(entries.places < most)
        theirs = self.table[OTHER[entries.direction]].negative_ids[entries.candidates[first], :most]
        found[first] = (theirs == entries.anchors[first, None]).any(axis=1)
        return found


def below_positive(entries: Entries) -> Float64[np.ndarray, " entries"]:
    """How far under the anchor's lowest-scoring positive; NaN without one, which is less than nothing."""
    return entries.positive_scores.astype(np.float64) - entries.scores


QUESTIONS: dict[str, Callable[[Entries, Any, Context], Bool[np.ndarray, " entries"]]] = {
    "range_min": lambda entries, first, _: entries.places < first,
    "range_max": lambda entries, end, _: entries.places >= end,
    "min_score": lambda entries, least, _: entries.scores < least,
    "max_score": lambda entries, most, _: entries.scores > most,
    "positives": lambda entries, _, context: context.is_match(entries),
    "same_text": lambda entries, _, context: context.texts.same(entries),
    "near_text": lambda entries, least, context: context.texts.likeness(entries) >= least,
    "caption_similarity": lambda entries, least, context: caption_likeness(entries, context.knowledge) >= least,
    "image_similarity": lambda entries, least, context: image_likeness(entries, context.knowledge) >= least,
    "mutual_rank": lambda entries, most, context: context.is_mutual(entries, most),
    "doubtful_pair": lambda entries, least, context: context.is_doubtful(entries, least),
    "absolute_margin": lambda entries, margin, _: below_positive(entries) < margin,
    "relative_margin": lambda entries, share, _: below_positive(entries) < share * np.abs(entries.positive_scores),
}


def bit(rule: str) -> int:
    """The flag of a rule."""
    return 1 << RULES.index(rule)


def rules_of(flags: int) -> tuple[str, ...]:
    """The rules whose bits are set.

    >>> rules_of(bit("same_text") | bit("mutual_rank"))
    ('same_text', 'mutual_rank')
    """
    return tuple(rule for rule in RULES if flags & bit(rule))


def flag_negatives(
    table: NegativeTable, direction: Direction, screen: Screen, knowledge: Knowledge
) -> UInt16[np.ndarray, "anchors h"]:
    """Of every listed negative, the bits of the rules that it meets; 0 for padding."""
    for rule in screen.rules:
        needed, what = NEEDS.get(rule, ("image_of", ""))
        if getattr(knowledge, needed) is None:
            raise ValueError(f"the rule {rule} needs {what}; give them, or leave out the rule.")
    ids, context = table[direction].negative_ids, Context(table, knowledge)
    asked = {rule: QUESTIONS[rule] for rule in screen.rules if rule in QUESTIONS}
    flags = np.zeros(ids.shape, dtype=np.uint16)
    for entries in entry_blocks(direction, table[direction]):
        found = np.zeros(len(entries.anchors), dtype=np.uint16)
        for rule, question in asked.items():
            found[question(entries, getattr(screen, rule), context)] |= bit(rule)
        flags[entries.anchors, entries.places] = found
    if screen.max_uses is not None:
        flags[_overused(ids, (flags == 0) & (ids >= 0), screen.max_uses)] |= bit("max_uses")
    return flags


def _overused(
    ids: Int32[np.ndarray, "anchors h"], left: Bool[np.ndarray, "anchors h"], most: int
) -> Bool[np.ndarray, "anchors h"]:
    """Of what is left, all but each candidate's `most` best places: the highest ranks, then the lowest anchors."""
    anchors, places = np.nonzero(left)
    candidates = ids[anchors, places]
    order = np.lexsort((anchors, places, candidates))
    ordered = candidates[order]
    uses_before = np.arange(len(order)) - np.searchsorted(ordered, ordered)
    beyond = order[uses_before >= most]
    found = np.zeros(ids.shape, dtype=np.bool_)
    found[anchors[beyond], places[beyond]] = True
    return found
