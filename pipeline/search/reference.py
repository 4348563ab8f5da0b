"""The definition of an exact search, for tests and for readers: every pair is scored exactly, and all are sorted."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float32, Int32

from aoq.pipeline.search.problem import Direction, Problem
from aoq.pipeline.search.scores import sum_exactly


def reference_lists(
    problem: Problem, direction: Direction
) -> tuple[Int32[np.ndarray, "anchors h"], Float32[np.ndarray, "anchors h"]]:
    """Ids and scores of each anchor's h best candidates that are not its positives: score falling, then id rising."""
    side, ids, scores = problem[direction], [], []
    for row, anchor in enumerate(side.anchors):
        own = set(side.positives[row].tolist())
        ranked = sorted(
            (-sum_exactly(anchor, candidate), number)
            for number, candidate in enumerate(side.candidates)
            if number not in own
        )
        ids.append([number for _, number in ranked[: side.h]])
        scores.append([-score for score, _ in ranked[: side.h]])
    return np.array(ids, np.int32), np.array(scores, np.float32) + np.float32(0)
