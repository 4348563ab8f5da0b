"""Judge a table's negatives by the rules of a screen: flags, suspicion, and FNE's posterior that a negative matches.

FNE: Your Negative May not Be True Negative (Li et al., ACM MM 2023, arXiv 2308.04380).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from jaxtyping import Bool, Float32, Float64, UInt32
from pydantic import ValidationError

from aoq.pipeline.config.screen import CERTAIN, RULES, Screen, Suspected
from aoq.pipeline.config.section import explain_refusal
from aoq.pipeline.data.noise import read_clean_pairs
from aoq.pipeline.reading import require_unmasked
from aoq.pipeline.search.problem import Direction
from aoq.pipeline.tables.contents import TableContents
from aoq.pipeline.tables.pairs import Pairs, require_one_each
from aoq.pipeline.tables.screens.judgements import read_judgements, read_matches
from aoq.pipeline.tables.screens.knowledge import Context, Knowledge, entry_blocks
from aoq.pipeline.tables.screens.rules import check_knowledge, flag_negatives
from aoq.pipeline.tables.screens.view import VIEW_VERSION, Judged, View, bit

_TINY = 1e-6
"""Least variance of scores, which may all be equal."""
Suspicion = Float32[np.ndarray, "anchors h"]
_Scores = Float32[np.ndarray, " scores"]


def judge(table: TableContents, screen: Screen, known: Knowledge) -> View:
    """Judge the table's negatives by the rules of the screen."""
    check_knowledge(screen, known)
    judged, counts, context = {}, {}, Context(table, known, screen)
    for direction in table.directions:
        flags = flag_negatives(context, direction)
        judged[direction] = Judged(flags, rate_suspicion(context, direction, flags))
        counts[direction] = _counts(flags, table[direction].negative_ids >= 0, screen)
        if screen.judgements is not None:
            probabilities = (context.judged(entries) for entries in entry_blocks(direction, table[direction]))
            counts[direction]["judged"] = sum(int((~np.isnan(block)).sum()) for block in probabilities)
    manifest = {
        "format_version": VIEW_VERSION,
        "rules": list(RULES),
        "screen": screen.recipe,
        "recipe_sha256": sha256(json.dumps(screen.recipe, sort_keys=True).encode()).hexdigest(),
        "table_sha256": table.sha256,
        "directions": counts,
    }
    return View(judged["i2t"], judged[table.directions[-1]], manifest)


def _counts(
    flags: UInt32[np.ndarray, "anchors h"], listed: Bool[np.ndarray, "anchors h"], screen: Screen
) -> dict[str, Any]:
    """Count the listed negatives, those left, and per rule those it takes from what earlier rules leave (which adds up)
    and those that meet it altogether."""
    left = listed.copy()
    takes, meets = {}, {}
    for rule in screen.rules:
        met = flags & bit(rule) > 0
        meets[rule] = int(met.sum())
        takes[rule] = int((met & left).sum())
        left &= ~met
    empty = int((~left.any(axis=1)).sum())
    return {"listed": int(listed.sum()), "takes": takes, "left": int(left.sum()), "empty": empty, "meets": meets}


def rate_suspicion(context: Context, direction: Direction, flags: UInt32[np.ndarray, "anchors h"]) -> Suspicion:
    """Suspicion from 0 to 1; 0 for padding. The first of these that applies:

    1 if people judged that the pair matches, or if it is the same text; the judge's probability if there is one; the
    fraction of the set suspecting rules that the pair meets, or its posterior if that is larger.
    """
    screen, table = context.screen, context.table
    met = np.zeros(flags.shape, np.float32)
    for rule in screen.suspecting:
        met += flags & bit(rule) > 0
    suspicion = met / np.float32(max(1, len(screen.suspecting)))
    posterior = None
    if screen.match_prior is not None and table[direction].h:
        posterior = match_posterior(table, direction, screen.match_prior)
    for entries in entry_blocks(direction, table[direction]):
        places = entries.anchors, entries.places
        if posterior is not None:
            suspicion[places] = np.maximum(suspicion[places], posterior(entries.scores))
        if screen.judgements is not None:
            judged = context.judged(entries)
            suspicion[places] = np.where(np.isnan(judged), suspicion[places], judged)
    suspicion[flags & sum(bit(rule) for rule in CERTAIN) > 0] = 1
    return suspicion


def match_posterior(table: TableContents, direction: Direction, prior: float) -> Callable[[_Scores], _Scores]:
    """Estimate the probability that a listed negative of score s matches, by Bayes' rule, as in FNE:

        P(match | s) = prior N(s; m+, v+) / (prior N(s; m+, v+) + (1 - prior) N(s; m-, v-))

    m+ and v+ are the mean and variance of the positives' scores, m- and v- those of the direction's listed negatives.
    Two normal densities of different width cross twice. Beyond the second crossing, a tail, the ratio would turn again,
    so it is kept rising with s. The official code takes m+ and m- of confident pairs and of a batch's hardest negatives
    during training; its prior is 1 / 10,000, that of a random pair.

    Raises:
        ValueError: if the table has no scores of positives or of listed negatives.
    """
    own, own_by_image, listed = (
        scores[np.isfinite(scores)].astype(np.float64)
        for scores in (table.t2i.positive_score, table.i2t.positive_score, table[direction].scores)
    )
    positives = own if len(own) else own_by_image  # a table of one direction has no captions' scores
    if min(len(positives), len(listed)) < 2:
        raise ValueError(
            "match_prior compares the positives' scores with the listed ones, and the table has "
            f"{len(positives)} and {len(listed)} of {direction}; leave it out, or mine a table with all pairs."
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

    def posterior(scores: _Scores) -> _Scores:
        rising = np.clip(scores.astype(np.float64), low, high)
        ratio = odds + _log_density(rising, mean, variance) - _log_density(rising, listed_mean, listed_variance)
        return (1 / (1 + np.exp(-np.clip(ratio, -700, 700)))).astype(np.float32)

    return posterior


def _log_density(
    scores: Float64[np.ndarray, " scores"], mean: float, variance: float
) -> Float64[np.ndarray, " scores"]:
    return -0.5 * (np.log(variance) + (scores - mean) ** 2 / variance)


def judge_by_rules(
    table: TableContents,
    rules: Mapping[str, Any],
    *,
    texts: Sequence[str] | None,
    images: Float32[np.ndarray, "images D"] | None,
    captions: Float32[np.ndarray, "captions D"] | None,
    positives: Path | str | Pairs | None,
    pair_probabilities: Path | str | Float32[np.ndarray, " captions"] | None,
    judgements: Path | str | pa.Table | None,
) -> tuple[View, Suspected]:
    """Judge the table by rules as a user names them; check the rules' inputs against the table's size."""
    if unknown := [rule for rule in rules if rule not in Screen.model_fields]:
        raise ValueError(f"there is no rule {unknown[0]!r}; the rules are {', '.join(Screen.model_fields)}.")
    inputs = {"positives": positives, "pair_probabilities": pair_probabilities, "judgements": judgements}
    options = {**rules, **{option: _name(value) for option, value in inputs.items()}}
    try:
        screen = Screen(**{option: value for option, value in options.items() if value is not None})
    except ValidationError as error:
        raise ValueError(explain_refusal(Screen, error)) from None
    for name, values in {"images": images, "captions": captions, **inputs}.items():
        require_unmasked(values, name)
    sizes = len(table.i2t), len(table.t2i)
    require_one_each(texts, "texts", sizes[1])
    require_one_each(images, "vectors of images", sizes[0])
    require_one_each(captions, "vectors of captions", sizes[1])
    if isinstance(positives, (str, Path)):
        positives = read_matches(Path(positives), *sizes)
    if isinstance(pair_probabilities, (str, Path)):
        pair_probabilities = read_clean_pairs(Path(pair_probabilities), sizes[1])
    judged = None
    if judgements is not None:
        source = Path(judgements) if isinstance(judgements, str) else judgements
        judged = read_judgements(source, *sizes, grades=screen.judged_grades, one_set=table.is_one_set)
    known = Knowledge(texts, images, captions, positives, pair_probabilities, judged)
    return judge(table, screen, known), screen.suspected


def _name(value: Path | str | np.ndarray | pa.Table | None) -> str | None:
    """Name a file, an array or an Arrow table in a recipe."""
    if isinstance(value, pa.Table):
        content = pa.BufferOutputStream()
        with pa.ipc.new_stream(content, value.schema) as stream:
            stream.write_table(value.combine_chunks())
        return f"sha256:{sha256(content.getvalue()).hexdigest()}"
    if isinstance(value, np.ndarray):
        return f"sha256:{sha256(np.ascontiguousarray(value).tobytes()).hexdigest()}"
    return None if value is None else str(value)
