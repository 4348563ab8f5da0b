"""The definition of an exact search, for tests and for readers: score every pair exactly and sort."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float32, Int32

from aoq.pipeline.search.problem import Direction, Problem
from aoq.pipeline.search.scores import sum_exactly


def reference_lists(
    problem: Problem, direction: Direction
) -> tuple[Int32[np.ndarray, "anchors h"], Float32[np.ndarray, "anchors h"]]:
    """Return ids and scores of each anchor's h best negatives, by falling score, then rising id; -1 and NaN pad."""
    side, ids, scores = problem[direction], [], []
    for row, anchor in enumerate(side.anchors):
        own = set(side.positives[row].tolist())
        ranked = sorted(
            (-sum_exactly(anchor, candidate), number)
            for number, candidate in enumerate(side.candidates)
            if number not in own
        )
        ids.append([number for _, number in ranked[: side.h]] + [-1] * (side.h - len(ranked)))
        scores.append([-score for score, _ in ranked[: side.h]] + [np.nan] * (side.h - len(ranked)))
    return np.array(ids, np.int32), np.array(scores, np.float32) + np.float32(0)
