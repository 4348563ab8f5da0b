"""What people look at: images with what a table, a run or a word says of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int64

from aoq.models.base import MatchingModel
from aoq.pipeline.data.batches import PairData
from aoq.pipeline.data.folder import Split
from aoq.pipeline.data.thumbnails import Thumbnails
from aoq.pipeline.data.vocabulary import tokenise
from aoq.pipeline.evaluation.attended import word_attention
from aoq.pipeline.report.collect import Run, Scored
from aoq.pipeline.search.problem import Direction
from aoq.pipeline.tables.inspection import Inspection, inspect_anchor
from aoq.pipeline.tables.table import NegativeTable


@dataclass(frozen=True)
class Listed:
    """An anchor of a table, its positives and its hardest negatives."""

    inspection: Inspection
    pictures: dict[int, str | None]
    """Of image rows that occur."""
    image: int


def listed_anchors(
    table: NegativeTable, split: Split, thumbs: Thumbnails, direction: Direction, *, count: int, top: int
) -> list[Listed]:
    rng = np.random.default_rng(0)
    anchors = np.sort(rng.choice(len(table[direction]), min(count, len(table[direction])), replace=False))
    found = []
    for anchor in anchors.tolist():
        inspection = inspect_anchor(table, split, direction, anchor, top, None)
        image = anchor if direction == "i2t" else int(split.image_of[anchor])
        rows = {image} | ({negative.row for negative in inspection.negatives} if direction == "t2i" else set())
        found.append(Listed(inspection, {row: thumbs[row] for row in rows}, image))
    return found


@dataclass(frozen=True)
class Answer:
    text: str
    picture: str | None
    score: float
    right: bool


@dataclass(frozen=True)
class Query:
    """What several runs find for one query."""

    text: str
    picture: str | None
    answers: dict[str, list[Answer]]
    """By run, best first."""


def examples(runs: Sequence[Run], thumbs: Thumbnails, direction: Direction, *, count: int, top: int) -> list[Query]:
    """Queries on which the runs differ most, then others: the first of a seeded shuffle."""
    split = runs[0].split
    ranks = np.stack([getattr(run.scored.ranks, direction) for run in runs if run.scored])
    order = np.random.default_rng(0).permutation(ranks.shape[1])
    apart = np.minimum(ranks, 50)
    order = order[np.argsort(-(apart.max(axis=0) - apart.min(axis=0))[order], kind="stable")]
    queries = []
    for query in np.concatenate([order[: count // 2], np.sort(order[count // 2 :])[: count - count // 2]]).tolist():
        answers = {run.name: _answers(run.scored, split, thumbs, direction, query, top) for run in runs if run.scored}
        if direction == "i2t":
            queries.append(Query("", thumbs[query], answers))
        else:
            queries.append(Query(split.captions[query], None, answers))
    return queries


def _answers(
    scored: Scored, split: Split, thumbs: Thumbnails, direction: Direction, query: int, top: int
) -> list[Answer]:
    scores = np.asarray(scored.similarity[query] if direction == "i2t" else scored.similarity[:, query])
    best: Int64[np.ndarray, " top"] = np.argsort(-scores, kind="stable")[:top]
    answers = []
    for row in best.tolist():
        if direction == "i2t":
            answers.append(Answer(split.captions[row], None, float(scores[row]), bool(split.image_of[row] == query)))
        else:
            answers.append(Answer("", thumbs[row], float(scores[row]), bool(split.image_of[query] == row)))
    return answers


@dataclass(frozen=True)
class Attended:
    """A caption over its image: of each word, how much it attends to each box."""

    run: str
    picture: str
    boxes: list[list[float]]
    words: list[str]
    weights: list[list[float]]


def attended_captions(
    name: str, model: MatchingModel, pairs: PairData, thumbs: Thumbnails, *, count: int
) -> list[Attended]:
    """None where there are no boxes, no pictures, or words that do not attend."""
    split = pairs.split
    if not model.attends or split.boxes is None or split.boxes.shape[2] != 4:
        return []
    rows = np.sort(np.random.default_rng(1).choice(split.caption_count, min(count, split.caption_count), replace=False))
    found = []
    with torch.inference_mode():
        model.eval()
        for row, weights in word_attention(model, pairs, rows, torch.device("cpu")):
            image = int(split.image_of[row])
            words, picture = tokenise(split.captions[row]), thumbs[image]
            if picture is not None:
                found.append(_attended(name, picture, split, image, words, weights))
    return found


def _attended(
    name: str, picture: str, split: Split, image: int, words: list[str], weights: Float[np.ndarray, "words regions"]
) -> Attended:
    assert split.boxes is not None  # checked before
    used = weights[: len(words)]
    boxes = np.asarray(split.boxes[image, : used.shape[1]], dtype=np.float64)
    shares = used / used.max(axis=1, keepdims=True).clip(min=1e-12)
    return Attended(name, picture, boxes.round(4).tolist(), words, shares.round(3).tolist())
