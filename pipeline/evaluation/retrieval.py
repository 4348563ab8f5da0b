"""Retrieval metrics from a similarity matrix: recall at K, median and mean rank, rsum; any pairing.

Ties are pessimistic: a negative as similar as the positive stands before it. NaN is an error, never a rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int, Int64

K = (1, 5, 10)
BLOCK_BYTES = 16 << 20


@dataclass(frozen=True)
class Ranks:
    """0-based ranks: of each image's best own caption, and of each caption's image."""

    i2t: Int64[np.ndarray, " images"]
    t2i: Int64[np.ndarray, " captions"]


def retrieval_ranks(similarity: Float[np.ndarray, "images captions"], image_of: Int[np.ndarray, " captions"]) -> Ranks:
    """Ranks by counting what is at least as similar; `image_of` is the image row of each caption.

    >>> retrieval_ranks(np.array([[0.9, 0.1, 0.5], [0.2, 0.3, 0.4]]), np.array([0, 0, 1]))
    Ranks(i2t=array([0, 0]), t2i=array([0, 1, 1]))
    """
    images, captions = similarity.shape
    if len(image_of) != captions:
        raise ValueError(f"{captions} columns of similarities, but {len(image_of)} captions have an image")
    own = similarity[image_of, np.arange(captions)]
    best = np.full(images, -np.inf, dtype=similarity.dtype)
    np.maximum.at(best, image_of, own)
    i2t, t2i = np.empty(images, dtype=np.int64), np.full(captions, -1, dtype=np.int64)  # -1: less the caption's image
    rows = max(1, BLOCK_BYTES // (similarity.itemsize * captions))
    for start in range(0, images, rows):
        block = similarity[start : start + rows]
        if not np.isfinite(block).all():
            row, column = np.argwhere(~np.isfinite(block))[0]
            raise ValueError(
                f"the similarity of image {start + row} and caption {column} is {block[row, column]}; "
                "the model or its features are broken, so no rank means anything."
            )
        i2t[start : start + rows] = np.count_nonzero(block >= best[start : start + rows, None], axis=1)
        t2i += np.count_nonzero(block >= own, axis=0)
    i2t -= np.bincount(image_of, weights=own == best[image_of], minlength=images).astype(np.int64)
    return Ranks(i2t, t2i)


def summarise(ranks: Ranks) -> dict[str, float]:
    """R@1, R@5, R@10 in percent, median and mean rank (1-based), in both directions, and rsum, the sum of recalls."""
    metrics: dict[str, float] = {}
    for direction, values in [("i2t", ranks.i2t), ("t2i", ranks.t2i)]:
        for k in K:
            metrics[f"{direction}_r{k}"] = 100.0 * float((values < k).mean())
        metrics[f"{direction}_medr"] = float(np.floor(np.median(values)) + 1)
        metrics[f"{direction}_meanr"] = float(values.mean() + 1)
    metrics["rsum"] = sum(metrics[f"{direction}_r{k}"] for direction in ("i2t", "t2i") for k in K)
    return metrics


def evaluate_similarity(
    similarity: Float[np.ndarray, "images captions"],
    image_of: Int[np.ndarray, " captions"],
    *,
    folds: int = 1,
) -> dict[str, float]:
    """The metrics, averaged over `folds` equal runs of consecutive images (COCO 1K: 5 folds of `testall`)."""
    every = [summarise(ranks) for _, ranks in _folds(similarity, image_of, folds)]
    return {name: float(np.mean([metrics[name] for metrics in every])) for name in every[0]}


def folded_ranks(
    similarity: Float[np.ndarray, "images captions"], image_of: Int[np.ndarray, " captions"], *, folds: int = 1
) -> Ranks:
    """The ranks of all images and captions, each among those of its own fold."""
    i2t, t2i = np.empty(len(similarity), dtype=np.int64), np.empty(len(image_of), dtype=np.int64)
    for fold, (own, ranks) in enumerate(_folds(similarity, image_of, folds)):
        i2t[fold * len(ranks.i2t) :][: len(ranks.i2t)] = ranks.i2t
        t2i[own] = ranks.t2i
    return Ranks(i2t, t2i)


def _folds(
    similarity: Float[np.ndarray, "images captions"], image_of: Int[np.ndarray, " captions"], folds: int
) -> Iterator[tuple[Int64[np.ndarray, " own"], Ranks]]:
    """The captions of each fold, and the ranks within it."""
    images = len(similarity)
    if images % folds:
        raise ValueError(f"{images} images do not divide into {folds} folds; choose [evaluation] folds accordingly.")
    size = images // folds
    for fold in range(folds):
        own = np.flatnonzero((image_of >= fold * size) & (image_of < (fold + 1) * size))
        block = similarity[fold * size : (fold + 1) * size][:, own]
        yield own, retrieval_ranks(block, image_of[own] - fold * size)


def ensemble(
    similarities: Sequence[Float[np.ndarray, "images captions"]],
    weights: Sequence[float] | None = None,
    into: Float[np.ndarray, "images captions"] | None = None,
) -> Float[np.ndarray, "images captions"]:
    """The (weighted) mean of several models' similarities: scores are fused, never recalls; row by row, in float64.

    >>> ensemble([np.array([[0.2]]), np.array([[0.8]])], weights=[2.0, 1.0])
    array([[0.4]])
    """
    shapes = {similarity.shape for similarity in similarities}
    if len(shapes) != 1:
        raise ValueError(f"the members of an ensemble must score the same pairs, got {sorted(shapes)}")
    mean = np.empty(similarities[0].shape, similarities[0].dtype) if into is None else into
    for row in range(len(mean)):
        mean[row] = np.average([similarity[row] for similarity in similarities], axis=0, weights=weights)
    return mean
