"""What a run answers to a query of its evaluation split."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int64

from aoq.pipeline.browse.paging import Page
from aoq.pipeline.browse.source import Evaluated
from aoq.pipeline.search.problem import Direction


@dataclass(frozen=True)
class Answer:
    rank: int
    row: int
    score: float
    is_right: bool


@dataclass(frozen=True)
class Answers:
    """All candidates, best first; among equals right ones come last, as recalls count them."""

    run: Evaluated
    rows: Int64[np.ndarray, " candidates"]
    scores: Float[np.ndarray, " candidates"]
    is_right: Bool[np.ndarray, " candidates"]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def right_ranks(self) -> list[int]:
        ranks: list[int] = (1 + np.flatnonzero(self.is_right)).tolist()
        return ranks

    def on(self, page: Page) -> Sequence[Answer]:
        places = page.cut(range(len(self)))
        return [
            Answer(place + 1, int(self.rows[place]), float(self.scores[place]), bool(self.is_right[place]))
            for place in places
        ]


def answers(run: Evaluated, direction: Direction, query: int) -> Answers:
    image_of = run.album.split.image_of
    scores = np.asarray(run.similarity[query] if direction == "i2t" else run.similarity[:, query])
    is_right = image_of == query if direction == "i2t" else np.arange(len(scores)) == image_of[query]
    order = np.lexsort((is_right, -scores))
    return Answers(run, order, scores[order], is_right[order])
