"""PMRP, R-Precision where images that show nearly the same count as matches (PCME, Chun et al., CVPR 2021)."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from jaxtyping import Bool, Float, Int, Int64

from aoq.pipeline.evaluation.relevance import check_finite, columns, r_precision

ZETAS = (0, 1, 2)


def pmrp(
    similarity: Float[np.ndarray, "images captions"],
    image_of: Int[np.ndarray, " captions"],
    classes: Bool[np.ndarray, "rows classes"],
    *,
    folds: int = 1,
) -> dict[str, float]:
    """In percent and both directions: `i2t_pmrp`, `t2i_pmrp`.

    Two items match if their images differ in at most zeta classes; the mean is over queries, then over zeta = 0, 1, 2,
    then over folds of consecutive images. Images without any class are left out, as queries and as candidates, with
    their captions. An item's own image counts as a match. Memory holds some columns of the similarity.
    """
    images = len(similarity)
    if classes.shape[0] != images:
        raise ValueError(f"{classes.shape[0]} rows of classes, and the split has {images} images.")
    if images % folds:
        raise ValueError(f"{images} images do not divide into {folds} folds.")
    size, found = images // folds, []
    for start in range(0, images, size):
        kept = start + np.flatnonzero(classes[start : start + size].any(axis=1))
        if not len(kept):
            raise ValueError(f"none of images {start} to {start + size - 1} shows any class.")
        captions = np.flatnonzero(np.isin(image_of, kept))
        of = np.searchsorted(kept, image_of[captions])
        rows = (similarity[image][captions] for image in kept)
        i2t = _r_precision(rows, np.arange(len(kept)), of, classes[kept])
        of_captions = (scores[kept] for scores in columns(similarity, captions))
        found.append((i2t, _r_precision(of_captions, of, np.arange(len(kept)), classes[kept])))
    i2t, t2i = np.mean(found, axis=0).tolist()
    return {"i2t_pmrp": i2t, "t2i_pmrp": t2i}


def _r_precision(
    scores: Iterable[Float[np.ndarray, " candidates"]],
    queries: Int64[np.ndarray, " queries"],
    candidates: Int64[np.ndarray, " candidates"],
    shown: Bool[np.ndarray, "images classes"],
) -> float:
    """In percent, the mean over queries and zetas; `queries` and `candidates` name the image of each."""
    total = 0.0
    for query, row in enumerate(scores):
        check_finite(row, query)
        differ = np.count_nonzero(shown != shown[queries[query]], axis=1)[candidates]
        total += sum(r_precision(row, differ <= zeta) for zeta in ZETAS)
    return 100.0 * total / (len(queries) * len(ZETAS))
