"""Recalls in both directions, as an evaluator of sentence-transformers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from sentence_transformers.base.evaluation import BaseEvaluator

from aoq.pipeline.evaluation.evaluate import recalls


class RecallEvaluator(BaseEvaluator):
    """Recall at 1, 5 and 10 between images and captions in percent, ranks, and rsum, the primary metric.

    `image_of` is the image of each caption. `matches` are further rows (image, caption) known to match; with them,
    `false_negatives` is the percentage of top-ranked answers counted as wrong that in fact match.
    """

    def __init__(
        self,
        images: Sequence[Any],
        captions: Sequence[Any],
        image_of: Sequence[int] | np.ndarray,
        *,
        matches: np.ndarray | None = None,
        name: str = "",
        batch_size: int = 32,
    ) -> None:
        super().__init__()
        self._images, self._captions, self._image_of = images, captions, np.asarray(image_of)
        if len(self._image_of) != len(captions):
            raise ValueError(
                f"image_of names the images of {len(self._image_of)} captions, but {len(captions)} are given."
            )
        self._matches, self._name, self._batch_size = matches, name, batch_size
        self.primary_metric = "rsum"

    def __call__(
        self, model: Any, output_path: str | None = None, epoch: int = -1, steps: int = -1
    ) -> dict[str, float]:
        options = {"batch_size": self._batch_size, "show_progress_bar": False, "normalize_embeddings": True}
        images, captions = (model.encode(list(side), **options) for side in (self._images, self._captions))
        similarity = np.asarray(images, np.float32) @ np.asarray(captions, np.float32).T
        measured = recalls(similarity, self._image_of)
        if self._matches is not None:
            measured["false_negatives"] = self._false_negatives(similarity)
        metrics: dict[str, float] = self.prefix_name_to_metrics(measured, self._name)
        self.store_metrics_in_model_card_data(model, metrics, epoch, steps)
        return metrics

    def _false_negatives(self, similarity: np.ndarray) -> float:
        matches = np.zeros(similarity.shape, dtype=bool)
        matches[tuple(np.asarray(self._matches).T)] = True
        rows, columns = np.arange(len(similarity)), np.arange(similarity.shape[1])
        captions, images = similarity.argmax(axis=1), similarity.argmax(axis=0)
        wrong = np.concatenate([self._image_of[captions] != rows, images != self._image_of])
        known = np.concatenate([matches[rows, captions], matches[images, columns]])
        return 100 * float(known[wrong].mean()) if wrong.any() else 0.0
