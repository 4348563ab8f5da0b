"""Judge a table's negatives by the rules of a screen: flags, suspicion, and FNE's posterior that a negative matches.

`aoq.pipeline.config.screen` defines the rules. FNE: Your Negative May not Be True Negative (Li et al., ACM MM 2023,
arXiv 2308.04380).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float32, Float64, Int32, UInt32

from aoq.pipeline.config.screen import CERTAIN, EXCLUSIONS, RULES, ScreenSection
from aoq.pipeline.search.problem import OPPOSITE, Direction
from aoq.pipeline.tables.contents import TableContents
from aoq.pipeline.tables.files import corrects_hubs
from aoq.pipeline.tables.pairs import is_among, pair_keys
from aoq.pipeline.tables.screens.knowledge import INPUT_OPTIONS, Context, Entries, Knowledge, entry_blocks
from aoq.pipeline.tables.screens.view import VIEW_VERSION, Judged, View, bit

_TINY = 1e-6
"""Least variance of scores, which may all be equal."""
WEAKER = sum(bit(rule) for rule in RULES if rule not in (*EXCLUSIONS, *CERTAIN))
"""Flags that a judge's rejection clears."""
_ListScores = Float32[np.ndarray, " scores"]


def is_match(entries: Entries, _: str, context: Context) -> Bool[np.ndarray, " entries"]:
    return is_among(pair_keys(entries.images, entries.captions, len(context.table.t2i)), context.matches)


def is_doubtful(entries: Entries, least: float, context: Context) -> Bool[np.ndarray, " entries"]:
    """Return whether the caption's own pair is doubtful; a caption without an image has none."""
    right, pairs = context.known.pair_probabilities, np.diff(context.table.own("t2i").offsets)
    assert right is not None  # `judge` made sure
    if len(several := np.flatnonzero(pairs > 1)):
        raise ValueError(
            f"the rule doubtful_pair needs one pair per caption, but caption {several[0]} has {pairs[several[0]]}; "
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
    """A predicate of whole lists of negatives and the rule's value, and the fields of Knowledge that it needs."""

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


def judge(table: TableContents, screen: ScreenSection, known: Knowledge) -> View:
    """Judge the table's negatives by the rules of the screen; refuse a rule whose input is missing."""
    judged, counts, context = {}, {}, Context(table, known, screen)
    for rule in screen.rules:
        for needs in PREDICATES[rule].needs if rule in PREDICATES else ():
            if getattr(known, needs) is None:
                raise ValueError(f"the rule {rule} needs {INPUT_OPTIONS[needs]}; give them, or leave out the rule.")
    margins = screen.set_among(("absolute_margin", "relative_margin"))
    if margins and not any(np.isfinite(table[direction].positive_score).any() for direction in table.directions):
        raise ValueError(f"{margins[0]} needs the positives' scores, but this table has none; screen by other rules.")
    limits = screen.set_among(("min_score", "max_score"))
    if limits and not any(np.isfinite(table[direction].scores).any() for direction in table.directions):
        raise ValueError(f"{limits[0]} needs scores, but this table has none; screen by other rules.")
    if screen.relative_margin is not None and corrects_hubs(table.manifest):
        raise ValueError(
            "relative_margin needs positive scores; this table's are corrected for hubs, so use absolute_margin."
        )
    for direction in table.directions:
        judged[direction], counts[direction] = _judge_direction(context, direction)
    manifest = {
        "format_version": VIEW_VERSION,
        "rules": list(RULES),
        "screen": screen.recipe,
        "recipe_sha256": sha256(json.dumps(screen.recipe, sort_keys=True).encode()).hexdigest(),
        "table_sha256": table.sha256,
        "directions": counts,
    }
    return View(judged["i2t"], judged[table.directions[-1]], manifest)


def _judge_direction(context: Context, direction: Direction) -> tuple[Judged, dict[str, Any]]:
    """Flag each negative with the rules that it meets, rate its suspicion, and count; padding has no flags.

    The suspicion is the first of these that applies: 1 if people judged that the pair matches, or if it is the same
    text; the judge's probability, and a pair that the judge rejects loses the flags of weaker rules; the fraction of
    the set suspecting rules that the pair meets, or its posterior if that is larger.
    """
    lists, screen = context.table[direction], context.screen
    flags = np.zeros(lists.negative_ids.shape, np.uint32)
    suspicion, judged = np.zeros(flags.shape, np.float32), np.full(flags.shape, np.nan, np.float32)
    posterior = (
        match_posterior(context.table, direction, screen.match_prior) if screen.match_prior and lists.h else None
    )
    if direction == "i2t" and screen.margin_positive is not None:
        of_mean, of_highest = context.table.mean_positive_scores, context.table.highest_positive_scores
        lists = replace(lists, positive_score=of_mean() if screen.margin_positive == "mean" else of_highest())
    for entries in entry_blocks(direction, lists):
        places, bits = (entries.anchors, entries.places), np.zeros(len(entries.anchors), np.uint32)
        for rule in screen.rules:
            if rule in PREDICATES:
                bits[PREDICATES[rule].holds(entries, getattr(screen, rule), context)] |= bit(rule)
        if screen.judgements is not None:
            judged[places] = context.judged(entries)
            bits[judged[places] < np.float32(screen.judged_match)] &= ~np.uint32(WEAKER)
        if posterior is not None:
            suspicion[places] = posterior(entries.scores)
        flags[places] = bits
    if screen.max_uses is not None:
        _cap_uses(flags, lists.negative_ids, screen.max_uses)
    met = sum(((flags & bit(rule) > 0).astype(np.float32) for rule in screen.suspecting), np.zeros_like(suspicion))
    suspicion = np.maximum(suspicion, met / np.float32(max(1, len(screen.suspecting))))
    suspicion = np.where(np.isnan(judged), suspicion, judged)
    suspicion[flags & sum(bit(rule) for rule in CERTAIN) > 0] = 1
    counts = _counts(flags, lists.negative_ids >= 0, screen)
    if screen.judgements is not None:
        counts["judged"] = int((~np.isnan(judged)).sum())
    return Judged(flags, suspicion), counts


def _cap_uses(flags: UInt32[np.ndarray, "anchors h"], ids: Int32[np.ndarray, "anchors h"], most: int) -> None:
    """Leave each candidate its best uses among those without flags, by rank, then by anchor; flag the others."""
    places, anchors = np.nonzero(((flags == 0) & (ids >= 0)).T)
    candidates = ids[anchors, places]
    order = np.argsort(candidates, kind="stable")
    uses_before = np.arange(len(order)) - np.searchsorted(candidates[order], candidates[order])
    beyond = order[uses_before >= most]
    flags[anchors[beyond], places[beyond]] |= bit("max_uses")


def _counts(
    flags: UInt32[np.ndarray, "anchors h"], listed: Bool[np.ndarray, "anchors h"], screen: ScreenSection
) -> dict[str, Any]:
    """Count the listed negatives, those left, and per rule those it takes from what earlier rules leave (these add up)
    and all that meet it."""
    left = listed.copy()
    takes, meets = {}, {}
    for rule in screen.rules:
        met = flags & bit(rule) > 0
        meets[rule] = int(met.sum())
        takes[rule] = int((met & left).sum())
        left &= ~met
    empty = int((~left.any(axis=1)).sum())
    return {"listed": int(listed.sum()), "takes": takes, "left": int(left.sum()), "empty": empty, "meets": meets}


def match_posterior(table: TableContents, direction: Direction, prior: float) -> Callable[[_ListScores], _ListScores]:
    """Estimate the probability that a listed negative of score s matches, by Bayes' rule, as in FNE:

        P(match | s) = prior N(s; m+, v+) / (prior N(s; m+, v+) + (1 - prior) N(s; m-, v-))

    m+ and v+ are the mean and variance of the positives' scores, m- and v- those of the direction's listed negatives.
    Two normal densities of different width cross twice. Beyond the second crossing, a tail, the ratio would turn again,
    so it is kept rising with s. The official code takes m+ and m- of confident pairs and of a batch's hardest negatives
    during training; its prior is 1 / 10,000, that of a random pair.
    """
    own, own_by_image, listed = (
        scores[np.isfinite(scores)].astype(np.float64)
        for scores in (table.t2i.positive_score, table.i2t.positive_score, table[direction].scores)
    )
    positives = own if len(own) else own_by_image  # a table of one direction has no captions' scores
    if min(len(positives), len(listed)) < 2:
        raise ValueError(
            "match_prior compares scores of positives and listed negatives, but the table has "
            f"{len(positives)} and {len(listed)} for {direction}; leave it out, or mine a table with all pairs."
        )
    (mean, variance), (listed_mean, listed_variance) = (
        (float(scores.mean()), max(float(scores.var()), _TINY)) for scores in (positives, listed)
    )
    # The log of the ratio is a parabola in s, which rises up to its top or from its minimum on.
    low, high, curvature = -np.inf, np.inf, 1 / listed_variance - 1 / variance
    if curvature:
        turn = (listed_mean / listed_variance - mean / variance) / curvature
        low, high = (turn, high) if curvature > 0 else (low, turn)
    odds = np.log(prior) - np.log1p(-prior)

    def posterior(scores: _ListScores) -> _ListScores:
        rising = np.clip(scores.astype(np.float64), low, high)
        ratio = odds + _log_density(rising, mean, variance) - _log_density(rising, listed_mean, listed_variance)
        return (1 / (1 + np.exp(-np.clip(ratio, -700, 700)))).astype(np.float32)

    return posterior


def _log_density(
    scores: Float64[np.ndarray, " scores"], mean: float, variance: float
) -> Float64[np.ndarray, " scores"]:
    return -0.5 * (np.log(variance) + (scores - mean) ** 2 / variance)
