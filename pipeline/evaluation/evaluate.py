"""Measure recalls of a similarity matrix, or of a model on a dataset folder."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from aoq.models.base import MatchingModel
from aoq.pipeline.data.batches import PairData
from aoq.pipeline.data.folder import open_split
from aoq.pipeline.evaluation.retrieval import evaluate_similarity
from aoq.pipeline.prepare.pieces import read_words, tokenised
from aoq.pipeline.reading import host_array


def recalls(
    similarity: Float[np.ndarray, "images captions"] | Float[Tensor, "images captions"],
    image_of: Int[np.ndarray, " captions"] | Int[Tensor, " captions"],
    *,
    folds: int = 1,
) -> dict[str, float]:
    """Measure retrieval in both directions: recall at 1, 5 and 10 in percent, median and mean rank, and rsum.

    `image_of` is the image row of each caption; an image without captions is only a candidate. With `folds`, the mean
    over equal runs of consecutive images (COCO 1K: 5). Ties count against the positive. Raises ValueError if a
    similarity is not finite.

    >>> metrics = recalls(np.array([[0.9, 0.1, 0.5], [0.2, 0.3, 0.4]]), np.array([0, 0, 1]))
    >>> metrics["i2t_r1"], round(metrics["t2i_r1"], 1), round(metrics["rsum"], 1)
    (100.0, 33.3, 533.3)
    """
    similarity, rows = host_array(similarity, "similarity"), host_array(image_of, "image_of")
    if len(outside := np.flatnonzero((rows < 0) | (rows >= len(similarity)))):
        raise ValueError(
            f"caption {outside[0]} belongs to image {rows[outside[0]]}, but there are images 0 to "
            f"{len(similarity) - 1}; leave out captions without an image."
        )
    exact = similarity if similarity.dtype.kind == "f" else similarity.astype(np.float64)  # integers have no -inf
    return evaluate_similarity(exact, rows, folds=folds)


def evaluate(
    model: MatchingModel,
    folder: str | os.PathLike[str],
    split: str = "test",
    *,
    vocabulary: str | os.PathLike[str],
    max_regions: int | None = None,
    folds: int = 1,
    device: str | torch.device = "cpu",
) -> dict[str, float]:
    """Measure `recalls` of a model on one split of a dataset folder.

    `vocabulary` is the vocabulary of the model's training: `vocabulary.json` or the folder `tokeniser` of its dataset
    artefact, or an official file. `max_regions` keeps the first regions of each image, except in a grid, as in
    training. A model with an image tower reads the folder's photographs, as `aoq prepare` lists or packs them.
    """
    from aoq.pipeline.embedding import similarity_matrix  # imported here: `recalls` needs no pyarrow

    opened = open_split(Path(folder), split)
    tokens = tokenised(opened.captions, read_words(Path(vocabulary)))
    place = torch.device(device)
    pairs = PairData(opened, tokens, max_regions)
    if model.preprocessing is not None:
        from aoq.pipeline.prepare.photographs import open_pixels  # imported here: most models read features

        pairs = replace(pairs, pixels=open_pixels(Path(folder), opened, model.preprocessing))
    matrix = similarity_matrix(model.to(place), pairs, place)
    return evaluate_similarity(matrix, opened.image_of, opened.identity, folds=folds)
