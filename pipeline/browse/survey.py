"""What to look at first in a table: hubs, the most confused anchors, suspected false negatives, and its scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from aoq.pipeline.search.lists import NegativeLists
from aoq.pipeline.search.problem import Direction
from aoq.pipeline.tables.screens.view import Judged

MOST_SUSPECTS = 500
"""Enough for a person to judge."""
SHOWN, BINS, SCORES_BINNED = 12, 48, 200_000
"""Number of hubs and of confused anchors; bins of a histogram, and about how many scores it counts."""


class Suspect(NamedTuple):
    """A listed pair that may match."""

    suspicion: float
    """By the view, or else the score."""
    image: int
    caption: int
    score: float


@dataclass(frozen=True)
class Survey:
    hubs: list[tuple[int, int]]
    """Candidates that most lists contain, and the number of lists."""
    confused: list[tuple[int, float]]
    """Anchors whose hardest negative lies furthest above their lowest-scoring positive, and the gap."""
    suspects: list[Suspect]
    """The most suspected first: by the view, or else by score, if above a positive."""
    histogram: dict[str, Any] | None
    """Fractions of the listed `negatives`, and of the lowest-scoring `positives`, in bins from `low` to `high`."""


def survey(lists: NegativeLists, judged: Judged | None, direction: Direction, candidates: int) -> Survey:
    is_real = lists.negative_ids >= 0
    uses = np.bincount(lists.negative_ids[is_real], minlength=candidates)
    gaps = np.nan_to_num(lists.scores[:, 0] - lists.positive_score, nan=-np.inf)
    return Survey(
        [(row, int(uses[row])) for row in np.argsort(-uses, kind="stable")[:SHOWN].tolist() if uses[row]],
        [(row, float(gaps[row])) for row in np.argsort(-gaps, kind="stable")[:SHOWN].tolist() if gaps[row] >= 0],
        _suspects(lists, judged, direction),
        _histogram(lists.scores[is_real], lists.positive_score),
    )


def merge_suspects(surveys: Sequence[Survey]) -> list[Suspect]:
    """Merge the suspects of both directions: each pair once, the most suspected first."""
    merged: dict[tuple[int, int], Suspect] = {}
    for one in sorted(chain(*(each.suspects for each in surveys)), key=lambda one: -one.suspicion):
        merged.setdefault((one.image, one.caption), one)
    return [*merged.values()][:MOST_SUSPECTS]


def _suspects(lists: NegativeLists, judged: Judged | None, direction: Direction) -> list[Suspect]:
    suspicion, is_suspect = lists.scores, lists.scores >= lists.positive_score[:, None]
    if judged is not None:
        suspicion, is_suspect = judged.suspicion, (judged.suspicion > 0) & judged.is_allowed
    rows, places = np.nonzero(is_suspect & (lists.negative_ids >= 0))
    most = np.argsort(-suspicion[rows, places], kind="stable")[:MOST_SUSPECTS]
    rows, places = rows[most], places[most]
    pairs = [rows, lists.negative_ids[rows, places]][:: 1 if direction == "i2t" else -1]
    columns = (column.tolist() for column in (suspicion[rows, places], *pairs, lists.scores[rows, places]))
    return [Suspect(*values) for values in zip(*columns, strict=True)]


def _histogram(scores: np.ndarray, positives: np.ndarray) -> dict[str, Any] | None:
    scores, positives = (values[np.isfinite(values)] for values in (scores, positives))
    if not len(scores):
        return None
    binned = {"negatives": scores[:: max(1, len(scores) // SCORES_BINNED)], "positives": positives}
    both = np.concatenate([*binned.values()])
    low, high = float(both.min()), float(both.max())
    edges = np.linspace(low, high if high > low else low + 1, BINS + 1)
    bins: dict[str, Any] = {"low": low, "high": high}
    for name, values in binned.items():
        counts = np.histogram(values, edges)[0]
        bins[name] = (counts / max(1, counts.sum())).tolist()
    return bins
