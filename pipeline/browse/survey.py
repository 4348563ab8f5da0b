"""What to look at first in a table: hubs, the most confused anchors, suspected false negatives, and all scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32, Int64

from aoq.pipeline.browse.lists import ListFile
from aoq.pipeline.search.lists import NegativeLists
from aoq.pipeline.search.problem import Direction
from aoq.pipeline.tables.screens.view import Judged

SHOWN = 12
"""Number of hubs and of confused anchors."""
SUSPECTS = 500
"""Maximum number of suspects, enough for a person to judge."""
BINS = 48
MOST_SCORES = 200_000
SUSPECT = np.dtype([("suspicion", np.float32), ("image", np.int64), ("caption", np.int64), ("score", np.float32)])


@dataclass(frozen=True)
class Histogram:
    """Fractions of the listed negatives, and of the lowest-scoring positives, in bins from `low` to `high`."""

    low: float
    high: float
    negatives: list[float]
    positives: list[float]


@dataclass(frozen=True)
class Survey:
    """Summary of one direction."""

    hubs: list[tuple[int, int]]
    """Candidates that most lists contain, and the number of lists."""
    confused: list[tuple[int, float]]
    """Anchors whose hardest negative lies furthest above their lowest-scoring positive, and the gap."""
    suspects: np.ndarray
    """SUSPECTs, the most suspected first: by the view, or else by score, if above a positive."""
    histogram: Histogram | None


def survey(lists: ListFile, candidates: int) -> Survey:
    """Read every list once, a row group at a time."""
    uses, gaps = np.zeros(candidates, np.int64), np.full(len(lists), np.nan, np.float32)
    suspects, scores, positives = np.empty(0, SUSPECT), [], []
    step = max(1, len(lists) * lists.h // MOST_SCORES)
    for start, group, judged in lists.groups():
        real = group.negative_ids >= 0
        uses += np.bincount(group.negative_ids[real], minlength=candidates)
        gaps[start : start + len(group)] = group.scores[:, 0] - group.positive_score
        more = _suspects(start, group, judged, lists.direction)
        suspects = np.sort(np.concatenate([suspects, more]), order="suspicion")[-SUSPECTS:]
        scores.append(group.scores[real & np.isfinite(group.scores)][::step])
        positives.append(group.positive_score[np.isfinite(group.positive_score)])
    hubs = np.argsort(-uses, kind="stable")[:SHOWN]
    order = np.argsort(-np.nan_to_num(gaps, nan=-np.inf), kind="stable")[:SHOWN]
    return Survey(
        [(int(row), int(uses[row])) for row in hubs if uses[row]],
        [(int(row), float(gaps[row])) for row in order if gaps[row] >= 0],
        suspects[::-1],
        _histogram(np.concatenate(scores), np.concatenate(positives)),
    )


def merge_suspects(surveys: Sequence[Survey]) -> np.ndarray:
    """Merge the suspects of both directions: each pair once, the most suspected first."""
    suspects = np.concatenate([one.suspects for one in surveys])
    suspects = suspects[np.argsort(-suspects["suspicion"], kind="stable")]
    _, first = np.unique(suspects[["image", "caption"]], return_index=True)
    return suspects[np.sort(first)][:SUSPECTS]


def _suspects(start: int, group: NegativeLists, judged: Judged | None, direction: Direction) -> np.ndarray:
    if judged is None:
        suspicion, is_suspect = group.scores, group.scores >= group.positive_score[:, None]
    else:
        suspicion, is_suspect = judged.suspicion, (judged.suspicion > 0) & judged.is_allowed
    rows, places = np.nonzero(is_suspect & (group.negative_ids >= 0))
    if len(rows) > SUSPECTS:
        most = np.argsort(-suspicion[rows, places], kind="stable")[:SUSPECTS]
        rows, places = rows[most], places[most]
    found = np.empty(len(rows), SUSPECT)
    theirs = group.negative_ids[rows, places]
    found["image"], found["caption"] = (rows + start, theirs) if direction == "i2t" else (theirs, rows + start)
    found["suspicion"], found["score"] = suspicion[rows, places], group.scores[rows, places]
    return found


def _histogram(scores: Float32[np.ndarray, " some"], positives: Float32[np.ndarray, " anchors"]) -> Histogram | None:
    if not len(scores):
        return None
    both = np.concatenate([scores, positives])
    low, high = float(both.min()), float(both.max())
    edges = np.linspace(low, high if high > low else low + 1, BINS + 1)
    counts: list[Int64[np.ndarray, " bins"]] = [np.histogram(one, edges)[0] for one in (scores, positives)]
    return Histogram(low, high, *((one / max(1, one.sum())).tolist() for one in counts))
