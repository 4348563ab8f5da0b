"""What people said of pairs of images and captions, beside a model's scores of the same pairs."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int
from scipy.stats import kendalltau, spearmanr

from aoq.pipeline.data.annotations import Judgements


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
    first = _first_images(similarity)
    false = np.flatnonzero(first != image_of)
    wanted = first[false] * captions + false
    there = np.isin(wanted, keys)
    said = people[np.searchsorted(keys, wanted[there])]
    right_from = float(judged.scores.min() + judged.scores.max()) / 2
    return {
        "spearman": 100.0 * float(spearmanr(scores, people).statistic),
        "kendall": 100.0 * float(kendalltau(scores, people).statistic),
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
