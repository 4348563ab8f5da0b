"""What an evaluation adds where more is known of a split than its pairs (`aoq.pipeline.data.annotations`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from aoq.pipeline.data.annotations import Judgements, Pairs, read_classes, read_judgements, read_relevance
from aoq.pipeline.data.folder import Split
from aoq.pipeline.evaluation.relevance import columns, pmrp, relevant, summarise_relevance
from aoq.pipeline.extras import import_extra


def measure_annotations(
    similarity: Float[np.ndarray, "images captions"], split: Split, folder: Path, *, folds: int
) -> dict[str, Any]:
    """`relevance` by file and direction, `plausible` (PMRP) and `judgements` by file, as far as they are there."""
    found: dict[str, Any] = {}
    if files := read_relevance(folder, split):
        found["relevance"] = {
            name: {direction: _relevance(similarity, direction, pairs) for direction, pairs in by_direction.items()}
            for name, by_direction in files.items()
        }
    if (classes := read_classes(folder, split)) is not None:
        found["plausible"] = pmrp(similarity, split.image_of, classes, folds=folds)
    if judged := read_judgements(folder, split):
        found["judgements"] = {name: agreement(similarity, split.image_of, pairs) for name, pairs in judged.items()}
    return found


def _relevance(similarity: Float[np.ndarray, "images captions"], direction: str, pairs: Pairs) -> dict[str, float]:
    (images, captions), (image_count, caption_count) = pairs, similarity.shape
    if direction == "i2t":
        return summarise_relevance(similarity, relevant(images, captions, count=image_count, among=caption_count))
    right = relevant(captions, images, count=caption_count, among=image_count)
    return summarise_relevance(columns(similarity, np.arange(caption_count)), right)


def agreement(
    similarity: Float[np.ndarray, "images captions"], image_of: Int[np.ndarray, " captions"], judged: Judgements
) -> dict[str, float | None]:
    """Rank correlation of the model's scores with people's mean ones, in percent, and what they say of its errors.

    spearman, kendall   over all judged pairs (tau-b)
    judged              how many pairs
    false_hits          captions whose first image is another's, where people judged that pair
    right_from          the middle of the scores that people gave, from lowest to highest
    right_share         of the false hits the share that people score at least that; None where there are none
    """
    captions = similarity.shape[1]
    keys, place = np.unique(judged.images * captions + judged.captions, return_inverse=True)
    people = np.bincount(place, weights=judged.scores) / np.bincount(place)
    scores = similarity[keys // captions, keys % captions]
    if len(np.unique(people)) < 2 or len(np.unique(scores)) < 2:
        raise ValueError(f"{len(keys)} judged pairs, and all have one score; there is nothing to correlate.")
    stats = import_extra("scipy.stats", "eccv", "the correlation with people's judgements")
    first = _first_images(similarity)
    false = np.flatnonzero(first != image_of)
    wanted = first[false] * captions + false
    there = np.isin(wanted, keys)
    said = people[np.searchsorted(keys, wanted[there])]
    right_from = float(judged.scores.min() + judged.scores.max()) / 2
    return {
        "spearman": 100.0 * float(stats.spearmanr(scores, people).statistic),
        "kendall": 100.0 * float(stats.kendalltau(scores, people).statistic),
        "judged": len(keys),
        "false_hits": int(there.sum()),
        "right_from": right_from,
        "right_share": 100.0 * float((said >= right_from).mean()) if len(said) else None,
    }


def _first_images(similarity: Float[np.ndarray, "images captions"]) -> Int[np.ndarray, " captions"]:
    """The image that each caption finds first; row by row, as it may lie on disk."""
    first, best = np.zeros(similarity.shape[1], dtype=np.int64), np.array(similarity[0])
    for image, scores in enumerate(similarity):
        better = scores > best
        first[better], best[better] = image, scores[better]
    return first
