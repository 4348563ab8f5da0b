"""What people look at: images with what a table, a run or a word says of them, as the page's template reads it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from aoq.models.base import MatchingModel
from aoq.pipeline.data.batches import PairData
from aoq.pipeline.data.folder import Split
from aoq.pipeline.data.thumbnails import Thumbnails
from aoq.pipeline.data.vocabulary import tokenise
from aoq.pipeline.evaluation.attended import word_attention
from aoq.pipeline.report.collect import Run
from aoq.pipeline.search.problem import Direction
from aoq.pipeline.tables.inspection import inspect_anchor
from aoq.pipeline.tables.table import NegativeTable

FAR = 50
"""Runs do not differ more on a query that one of them answers further down."""


def listed_anchors(
    table: NegativeTable, split: Split, thumbs: Thumbnails, direction: Direction, *, count: int, top: int
) -> Iterator[dict[str, Any]]:
    """Anchors of a table with their positives and hardest negatives, and pictures of the images that occur, by row."""
    rng = np.random.default_rng(0)
    anchors = np.sort(rng.choice(len(table[direction]), min(count, len(table[direction])), replace=False))
    for anchor in anchors.tolist():
        inspection = inspect_anchor(table, split, direction, anchor, top, None)
        image = anchor if direction == "i2t" else int(split.image_of[anchor])
        rows = {image} | ({negative.row for negative in inspection.negatives} if direction == "t2i" else set())
        yield {"inspection": inspection, "pictures": {row: thumbs[row] for row in rows}, "image": image}


def examples(
    runs: Sequence[Run], thumbs: Thumbnails, direction: Direction, *, count: int, top: int
) -> Iterator[dict[str, Any]]:
    """Queries on which the runs differ most, then others, the first of a seeded shuffle; with each run's answers."""
    split, is_image = runs[0].split, direction == "i2t"
    scored = {run.name: run.scored for run in runs if run.scored}
    ranks = [each.ranks.i2t if is_image else each.ranks.t2i for each in scored.values()]
    order = np.random.default_rng(0).permutation(len(ranks[0]))
    apart = np.ptp(np.minimum(ranks, FAR), axis=0)
    order = order[np.argsort(-apart[order], kind="stable")]
    for query in np.concatenate([order[: count // 2], np.sort(order[count // 2 :])[: count - count // 2]]).tolist():
        is_right = split.image_of == query if is_image else np.arange(split.image_count) == split.image_of[query]
        answers = {}
        for name, each in scored.items():
            scores = np.asarray(each.similarity[query] if is_image else each.similarity[:, query])
            answers[name] = [
                {
                    "text": split.captions[row] if is_image else "",
                    "picture": None if is_image else thumbs[row],
                    "score": float(scores[row]),
                    "right": bool(is_right[row]),
                }
                for row in np.argsort(-scores, kind="stable")[:top].tolist()
            ]
        text, picture = ("", thumbs[query]) if is_image else (split.captions[query], None)
        yield {"text": text, "picture": picture, "answers": answers}


def attended_captions(
    name: str, model: MatchingModel, pairs: PairData, thumbs: Thumbnails, *, count: int
) -> list[dict[str, Any]]:
    """Captions over their images: how much each word attends to each box, from 0 to 1.

    None where there are no boxes, no pictures, or words that do not attend.
    """
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
                used = weights[: len(words)]
                boxes = np.asarray(split.boxes[image, : used.shape[1]], dtype=np.float64).round(4).tolist()
                shares = (used / used.max(axis=1, keepdims=True).clip(min=1e-12)).round(3).tolist()
                found.append({"run": name, "picture": picture, "boxes": boxes, "words": words, "weights": shares})
    return found
