"""What an evaluation adds where more is known of a split than its pairs (`aoq.pipeline.data.annotations`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from aoq.pipeline.data.annotations import Pairs, read_classes, read_judgements, read_relevance
from aoq.pipeline.data.folder import Split
from aoq.pipeline.evaluation.judgements import agreement
from aoq.pipeline.evaluation.plausible import pmrp
from aoq.pipeline.evaluation.relevance import columns, relevant, summarise_relevance


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
