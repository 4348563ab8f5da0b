"""PMRP, R-Precision where images with nearly the same labels count as matches (PCME, Chun et al., CVPR 2021)."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float, Int

from pipeline.evaluation.relevance import Relevant, summarise_relevance

ZETAS = (0, 1, 2)


def pmrp(
    similarity: Float[np.ndarray, "images captions"],
    image_of: Int[np.ndarray, " captions"],
    labels: Bool[np.ndarray, "rows classes"],
    *,
    folds: int = 1,
) -> dict[str, float]:
    """In percent and both directions: `i2t_pmrp`, `t2i_pmrp`.

    Two items match if the labels of their images differ in at most zeta classes; the mean is over queries, then over
    zeta = 0, 1, 2, then over folds of consecutive images. Images without any label are left out, as queries and as
    candidates, with their captions. An item's own image counts as a match.
    """
    images = len(similarity)
    if labels.shape[0] != images:
        raise ValueError(f"{labels.shape[0]} rows of labels, and the split has {images} images.")
    if images % folds:
        raise ValueError(f"{images} images do not divide into {folds} folds.")
    found: dict[str, list[float]] = {"i2t_pmrp": [], "t2i_pmrp": []}
    for start in range(0, images, images // folds):
        kept = start + np.flatnonzero(labels[start : start + images // folds].any(axis=1))
        if not len(kept):
            raise ValueError(f"none of images {start} to {start + images // folds - 1} has a label.")
        captions = np.flatnonzero(np.isin(image_of, kept))
        place = np.searchsorted(kept, image_of[captions])
        block, own = similarity[np.ix_(kept, captions)], labels[kept].astype(np.int32)
        distance = own.sum(axis=1)[:, None] + own.sum(axis=1)[None, :] - 2 * own @ own.T
        for zeta in ZETAS:
            match = distance <= zeta
            found["i2t_pmrp"].append(summarise_relevance(block, _rows(match[:, place]))["r_precision"])
            found["t2i_pmrp"].append(summarise_relevance(block.T, _rows(match[place]))["r_precision"])
    return {name: float(np.mean(values)) for name, values in found.items()}


def _rows(match: Bool[np.ndarray, "queries candidates"]) -> Relevant:
    offsets = np.concatenate([[0], match.sum(axis=1).cumsum()]).astype(np.int64)
    return Relevant(np.nonzero(match)[1], offsets)
