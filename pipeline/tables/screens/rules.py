"""Rules of a screen, each a predicate of listed negatives; `aoq.pipeline.config.screen` defines them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, UInt32

from aoq.pipeline.config.screen import CERTAIN, EXCLUSIONS, RULES, Screen
from aoq.pipeline.search.problem import OPPOSITE, Direction
from aoq.pipeline.tables.pairs import is_among, pair_keys
from aoq.pipeline.tables.screens.knowledge import INPUT_OPTIONS, Context, Entries, Knowledge, entry_blocks
from aoq.pipeline.tables.screens.view import bit


def is_match(entries: Entries, _: str, context: Context) -> Bool[np.ndarray, " entries"]:
    return is_among(pair_keys(entries.images, entries.captions, len(context.table.t2i)), context.matches)


def is_doubtful(entries: Entries, least: float, context: Context) -> Bool[np.ndarray, " entries"]:
    """Return whether a caption's own pair is doubtful; a caption of no image has none."""
    right, pairs = context.known.pair_probabilities, np.diff(context.own["t2i"].offsets)
    assert right is not None  # check_knowledge made sure
    if len(several := np.flatnonzero(pairs > 1)):
        raise ValueError(
            f"the rule doubtful_pair doubts a caption's one pair, and caption {several[0]} has {pairs[several[0]]}; "
            "leave out the rule."
        )
    return ((right < least) & (pairs > 0))[entries.captions]


def is_mutual(entries: Entries, most: int, context: Context) -> Bool[np.ndarray, " entries"]:
    mutual = entries.places < most
    first = np.flatnonzero(mutual)
    theirs = context.table[OPPOSITE[entries.direction]].negative_ids[entries.candidates[first], :most]
    mutual[first] = (theirs == entries.anchors[first, None]).any(axis=1)
    return mutual


def has_similar_owner(entries: Entries, share: float, context: Context) -> Bool[np.ndarray, " entries"]:
    """Mark the floor(share * n) of each list's n candidates whose owners are most similar to the anchor.

    SaHa: From Generator to Embedder (Ju and Lee, arXiv 2508.00955) keeps the candidates with the least similar owners:
    i2t: max over the images j of caption c of <i, j>        t2i: max over the captions d of image i of <c, d>
    Candidates that other rules leave out by rank or score do not count; ties go to the harder one.
    """
    pool = np.ones(len(entries.anchors), dtype=np.bool_)
    for rule in context.screen.rules:
        if rule in EXCLUSIONS and rule in PREDICATES:
            pool &= ~PREDICATES[rule].holds(entries, getattr(context.screen, rule), context)
    similarity = context.nearest_own("images" if entries.direction == "i2t" else "captions", entries)
    rows = np.flatnonzero(pool)
    order = rows[np.lexsort((entries.places[rows], -similarity[rows], entries.anchors[rows]))]
    anchors = entries.anchors[order]
    first, last = (np.searchsorted(anchors, anchors, side=side) for side in ("left", "right"))
    most = np.floor(share * (last - first) + 1e-9)  # 0.7 * 10 is a little less than 7
    is_marked = np.zeros(len(pool), dtype=np.bool_)
    is_marked[order[(np.arange(len(order)) - first < most) & np.isfinite(similarity[order])]] = True
    return is_marked


class Rule(NamedTuple):
    """A rule's predicate on whole lists of negatives and the rule's value, and the fields of Knowledge it needs."""

    holds: Callable[[Entries, Any, Context], Bool[np.ndarray, " entries"]]
    needs: tuple[str, ...] = ()


PREDICATES: dict[str, Rule] = {
    "range_min": Rule(lambda entries, first, _: entries.places < first),
    "range_max": Rule(lambda entries, end, _: entries.places >= end),
    "min_score": Rule(lambda entries, least, _: entries.scores < least),
    "max_score": Rule(lambda entries, most, _: entries.scores > most),
    "positives": Rule(is_match, ("matches",)),
    "same_text": Rule(lambda entries, _, context: context.texts.same(entries.images, entries.captions), ("texts",)),
    "near_text": Rule(
        lambda entries, least, context: context.texts.jaccard(entries.images, entries.captions) >= least, ("texts",)
    ),
    "caption_similarity": Rule(
        lambda entries, least, context: context.nearest_own("captions", entries) >= least, ("captions",)
    ),
    "image_similarity": Rule(
        lambda entries, least, context: context.nearest_own("images", entries) >= least, ("images",)
    ),
    "mutual_rank": Rule(is_mutual),
    "doubtful_pair": Rule(is_doubtful, ("pair_probabilities",)),
    "judgements": Rule(  # false for NaN
        lambda entries, _, context: context.judged(entries) >= np.float32(context.screen.judged_match), ("judgements",)
    ),
    "alike_owners": Rule(has_similar_owner, ("images", "captions")),
    "absolute_margin": Rule(lambda entries, margin, _: entries.below_positive < margin),
    "relative_margin": Rule(lambda entries, share, _: entries.below_positive < share * np.abs(entries.positive_score)),
}
"""All rules but `max_uses`, which concerns a whole direction."""
WEAKER = sum(bit(rule) for rule in RULES if rule not in (*EXCLUSIONS, *CERTAIN))


def check_knowledge(screen: Screen, known: Knowledge) -> None:
    """Refuse a rule whose input is missing."""
    for rule in screen.rules:
        for needs in PREDICATES[rule].needs if rule in PREDICATES else ():
            if getattr(known, needs) is None:
                raise ValueError(f"the rule {rule} needs {INPUT_OPTIONS[needs]}; give them, or leave out the rule.")


def flag_negatives(context: Context, direction: Direction) -> UInt32[np.ndarray, "anchors h"]:
    """Give every listed negative the bits of the rules that it meets; 0 for padding.

    A pair that the judge rejects loses the bits of the weaker rules: those that cast suspicion, except CERTAIN.
    """
    lists, screen = context.table[direction], context.screen
    flags = np.zeros(lists.negative_ids.shape, dtype=np.uint32)
    for entries in entry_blocks(direction, lists):
        bits = np.zeros(len(entries.anchors), dtype=np.uint32)
        for rule in screen.rules:
            if rule in PREDICATES:
                bits[PREDICATES[rule].holds(entries, getattr(screen, rule), context)] |= bit(rule)
        if screen.judgements is not None:
            bits[context.judged(entries) < np.float32(screen.judged_match)] &= ~np.uint32(WEAKER)
        flags[entries.anchors, entries.places] = bits
    if screen.max_uses is not None:  # leave each candidate its best uses, by rank, then by anchor
        places, anchors = np.nonzero(((flags == 0) & (lists.negative_ids >= 0)).T)
        candidates = lists.negative_ids[anchors, places]
        order = np.argsort(candidates, kind="stable")
        uses_before = np.arange(len(order)) - np.searchsorted(candidates[order], candidates[order])
        beyond = order[uses_before >= screen.max_uses]
        flags[anchors[beyond], places[beyond]] |= bit("max_uses")
    return flags
