"""Retrieval metrics from a similarity matrix: recall at K, median and mean rank, rsum, cross-retrieval ranks.

Ties are pessimistic: a negative as similar as the positive ranks before it. NaN is an error, not a rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float, Float64, Int, Int64

from aoq.pipeline.reading import open_array
from aoq.pipeline.search.positives import matching_pairs

K = (1, 5, 10)
ATTENTION_SCORES = ("precision", "recall", "f1")
EDGES = (1, 2, 6, 11, 21, 51, 101, 201)
"""Starts of the intervals in which cross-retrieval ranks are counted: 1, 2 to 5, ...; the last has no end."""
_BLOCK_BYTES = 16 << 20
Similarity = Float[np.ndarray, "images captions"]
ImageOf = Int[np.ndarray, " captions"]
"""The image row of each caption."""
Identity = Int[np.ndarray, " images"]
"""One number per image, the same for copies of one photograph."""


@dataclass(frozen=True)
class Ranks:
    """0-based ranks: of each image's best own caption, -1 if it has none, and of each caption's image."""

    i2t: Int64[np.ndarray, " images"]
    t2i: Int64[np.ndarray, " captions"]


def open_similarity(path: Path, images: int, captions: int) -> Similarity:
    """Open a similarity matrix on disk; whether its values are finite is checked when they are ranked."""
    similarity = open_array(path)
    if similarity.shape != (images, captions) or similarity.dtype != np.float32:
        raise ValueError(
            f"{path} has {similarity.dtype} of shape {similarity.shape}, but the split has {images} images and "
            f"{captions} captions; remove the evaluation, and evaluate again."
        )
    return similarity


def retrieval_ranks(similarity: Similarity, image_of: ImageOf, identity: Identity | None = None) -> Ranks:
    """Rank by counting candidates at least as similar; `image_of` is the image row of each caption.

    Images of one `identity` are copies of a photograph: each is a right answer to the others' captions.

    >>> retrieval_ranks(np.array([[0.9, 0.1, 0.5], [0.2, 0.3, 0.4]]), np.array([0, 0, 1]))
    Ranks(i2t=array([0, 0]), t2i=array([0, 1, 1]))
    """
    images, captions = similarity.shape
    rows_of, columns_of = matching_pairs(image_of, identity).T
    true = similarity[rows_of, columns_of]
    best, own = (np.full(count, -np.inf, dtype=similarity.dtype) for count in (images, captions))
    with np.errstate(invalid="ignore"):  # NaN is refused below
        np.maximum.at(best, rows_of, true)
        np.maximum.at(own, columns_of, true)
    i2t, t2i = np.empty(images, dtype=np.int64), np.zeros(captions, dtype=np.int64)
    rows = max(1, _BLOCK_BYTES // (similarity.itemsize * captions))
    for start in range(0, images, rows):
        block = similarity[start : start + rows]
        if not np.isfinite(block).all():
            row, column = np.argwhere(~np.isfinite(block))[0]
            raise ValueError(
                f"the similarity of image {start + row} and caption {column} is {block[row, column]}; "
                "the model or its features are broken; check them with `aoq data check`."
            )
        i2t[start : start + rows] = np.count_nonzero(block >= best[start : start + rows, None], axis=1)
        t2i += np.count_nonzero(block >= own, axis=0)
    i2t -= np.bincount(rows_of, weights=true == best[rows_of], minlength=images).astype(np.int64)
    i2t[np.bincount(rows_of, minlength=images) == 0] = -1
    t2i -= np.bincount(columns_of, weights=true == own[columns_of], minlength=captions).astype(np.int64)
    return Ranks(i2t, t2i)


def summarise(ranks: Ranks) -> dict[str, float]:
    """Return R@1, R@5, R@10 in percent, median and mean rank (1-based) of both directions, and the sum of recalls."""
    metrics: dict[str, float] = {}
    for direction, values in [("i2t", ranks.i2t[ranks.i2t >= 0]), ("t2i", ranks.t2i)]:
        for k in K:
            metrics[f"{direction}_r{k}"] = 100.0 * float((values < k).mean())
        metrics[f"{direction}_medr"] = float(np.floor(np.median(values)) + 1)
        metrics[f"{direction}_meanr"] = float(values.mean() + 1)
    metrics["rsum"] = sum(metrics[f"{direction}_r{k}"] for direction in ("i2t", "t2i") for k in K)
    return metrics


def evaluate_similarity(
    similarity: Similarity, image_of: ImageOf, identity: Identity | None = None, *, folds: int = 1
) -> dict[str, float]:
    """Compute the metrics, averaged over `folds` equal runs of consecutive images (COCO 1K: 5 folds of `testall`)."""
    every = [summarise(ranks) for _, ranks in _folds(similarity, image_of, identity, folds)]
    return {name: float(np.mean([metrics[name] for metrics in every])) for name in every[0]}


def folded_ranks(
    similarity: Similarity, image_of: ImageOf, identity: Identity | None = None, *, folds: int = 1
) -> Ranks:
    """Rank all images and captions, each within its own fold."""
    i2t, t2i = np.empty(len(similarity), dtype=np.int64), np.empty(len(image_of), dtype=np.int64)
    for fold, (own, ranks) in enumerate(_folds(similarity, image_of, identity, folds)):
        i2t[fold * len(ranks.i2t) :][: len(ranks.i2t)] = ranks.i2t
        t2i[own] = ranks.t2i
    return Ranks(i2t, t2i)


def _folds(
    similarity: Similarity, image_of: ImageOf, identity: Identity | None, folds: int
) -> Iterator[tuple[Int64[np.ndarray, " own"], Ranks]]:
    """Yield the captions of each fold, and the ranks within it."""
    images, captions = similarity.shape
    if len(image_of) != captions:
        raise ValueError(f"the similarities have {captions} columns, but {len(image_of)} captions have an image")
    if folds < 1 or images % folds:
        raise ValueError(f"{images} images do not divide into {folds} folds; choose [evaluation] folds accordingly.")
    size = images // folds
    for fold in range(folds):
        own = np.flatnonzero((image_of >= fold * size) & (image_of < (fold + 1) * size))
        if not len(own):
            raise ValueError(f"the images of fold {fold + 1} of {folds} have no caption; choose fewer folds.")
        rows = slice(fold * size, (fold + 1) * size)
        block = similarity[rows]
        block = block if len(own) == captions else block[:, own]  # indexing would read all of it
        same = None if identity is None else identity[rows]
        yield own, retrieval_ranks(block, image_of[own] - fold * size, same)


def ensemble(
    similarities: Sequence[Similarity], weights: Sequence[float] | None = None, into: Similarity | None = None
) -> Similarity:
    """Average the (weighted) similarities of several models: scores are fused, never recalls; row by row, in float64.

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


def cross_retrieval_ranks(
    similarity: Similarity, image_of: ImageOf, identity: Identity | None = None
) -> Float64[np.ndarray, " captions"]:
    """Return the rank of each caption's pair in its worse direction: max(w (r_i - 1) + 1, r_t), from 1.

    r_i is the pair's rank among those with another image, r_t among those with another image's caption, and
    w = (C - n) / (I - m) is the ratio of their counts, where the photograph has n captions and m copies by `identity`,
    itself included. With five captions per image w = 5, and this is max(5 r_i - 4, r_t) of AOQ's supplement. Ties rank
    before the pair.

    >>> cross_retrieval_ranks(np.array([[0.9, 0.1, 0.5], [0.2, 0.3, 0.4]]), np.array([0, 0, 1]))
    array([1., 2., 3.])
    """
    images, captions = similarity.shape
    own = similarity[image_of, np.arange(captions)]
    photograph = np.arange(images) if identity is None else identity
    shown = photograph[image_of]
    others, sharing = np.zeros((2, captions), dtype=np.int64)
    for image, scores in enumerate(similarity):
        is_own = shown == photograph[image]
        others += (scores >= own) & ~is_own
        its = image_of == image
        sharing[its] = np.count_nonzero(scores[~is_own] >= own[its, None], axis=1)
    others_there = np.maximum(1, images - np.bincount(photograph)[shown])
    weight = (captions - np.bincount(shown)[shown]) / others_there
    return np.maximum(weight * others + 1, sharing + 1.0)
