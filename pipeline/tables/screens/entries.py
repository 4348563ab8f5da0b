"""Listed negatives as a screen's rules receive them: list by list, in blocks of lists."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32, Float64, Int64

from aoq.pipeline.search.lists import NegativeLists
from aoq.pipeline.search.problem import Direction, blocks

BLOCK_ENTRIES = 2**20


@dataclass(frozen=True)
class Entries:
    """Listed negatives, list by list; `anchors` and `places` give their positions in the table."""

    direction: Direction
    anchors: Int64[np.ndarray, " entries"]
    places: Int64[np.ndarray, " entries"]
    candidates: Int64[np.ndarray, " entries"]
    scores: Float32[np.ndarray, " entries"]
    positive_score: Float32[np.ndarray, " entries"]
    """Score of the anchor's lowest-scoring positive; NaN without one."""
    images: Int64[np.ndarray, " entries"]
    captions: Int64[np.ndarray, " entries"]

    @property
    def below_positive(self) -> Float64[np.ndarray, " entries"]:
        """Distance below the score of the anchor's lowest-scoring positive; NaN (below any margin) without one."""
        return self.positive_score.astype(np.float64) - self.scores


def entry_blocks(direction: Direction, lists: NegativeLists) -> Iterator[Entries]:
    """Iterate over all listed negatives, in blocks of lists."""
    for start, stop in blocks(len(lists), max(1, BLOCK_ENTRIES // max(1, lists.h))):
        part = lists[start:stop]
        rows, places = np.nonzero(part.negative_ids >= 0)
        ids, scores = part.negative_ids[rows, places].astype(np.int64), part.scores[rows, places]
        anchors = rows + start
        pairs = (anchors, ids) if direction == "i2t" else (ids, anchors)
        yield Entries(direction, anchors, places, ids, scores, part.positive_score[rows], *pairs)
