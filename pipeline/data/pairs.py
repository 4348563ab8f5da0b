"""Which captions belong to which image. The pairing is data: nothing assumes five captions an image."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int, Int32

from aoq.pipeline.data.files import open_array
from aoq.pipeline.search.problem import Positives, own_captions

BLOCKS = 16
"""How many groups of repeated rows are compared."""


def captions_of(image_of: Int[np.ndarray, " captions"], images: int) -> Positives:
    """The captions of every image, rising.

    >>> captions_of(np.array([1, 0, 1]), images=2)[1]
    array([0, 2], dtype=int32)
    """
    return own_captions(image_of.astype(np.int32), images)


def read_pairs(path: Path, captions: int) -> Int32[np.ndarray, " captions"]:
    """`{split}_pairs.npy`: the image of every caption."""
    pairs = open_array(path)
    if pairs.shape != (captions,) or pairs.dtype.kind not in "iu":
        raise ValueError(
            f"{path}: needs one integer image row a caption, shape ({captions},); this array has "
            f"{pairs.shape} {pairs.dtype}. Write it again, or remove it if captions stand in image order."
        )
    if pairs.min() < 0:
        raise ValueError(f"{path}: entry {int(np.argmin(pairs))} is {pairs.min()}; image rows start at 0.")
    return np.array(pairs, dtype=np.int32)


def repeats(
    features: Float[np.ndarray, "rows regions features"],
    captions: int,
    pairs: Int32[np.ndarray, " captions"] | None = None,
    ids: Sequence[str] | None = None,
) -> int:
    """How many consecutive rows hold one image: k in official arrays that repeat it once a caption, else 1."""
    rows = len(features)
    if rows != captions:
        return 1
    if pairs is not None:
        images = int(pairs.max()) + 1
        times = rows // images if rows % images == 0 else 1
        return times if times > 1 and _is_repeated(features, times) else 1
    run = next((row for row in range(1, rows) if not np.array_equal(features[row], features[0])), rows)
    if run == rows:
        return 1
    # Two equal images in a row make the first run longer than k, so the divisors of the run are tried too.
    for times in (times for times in range(run, 1, -1) if run % times == 0 and rows % times == 0):
        if _is_repeated(features, times) and (ids is None or len(ids) != rows or _constant(ids, times)):
            return times
    return 1


def _is_repeated(rows: Float[np.ndarray, "rows regions features"], times: int) -> bool:
    """Whether each `times` rows are the same, judged by evenly spaced blocks, the first and the last among them."""
    starts = np.unique(np.linspace(0, len(rows) // times - 1, BLOCKS).astype(np.int64)) * times
    return all(np.array_equal(rows[start], rows[start + i]) for start in starts for i in range(1, times))


def pair_captions(
    ims: Path, rows: int, repeat: int, captions: int, pairs: Int32[np.ndarray, " captions"] | None
) -> Int32[np.ndarray, " captions"]:
    """The image of every caption: `pairs` where given, else as many consecutive captions for every image."""
    images = rows // repeat
    if pairs is None:
        if captions % images:
            raise ValueError(
                f"{ims}: {captions} captions for {images} images is not a whole number an image; add those "
                f"missing, or say which image each belongs to in {ims.name.replace('_ims', '_pairs')}."
            )
        return np.repeat(np.arange(images, dtype=np.int32), captions // images)
    if pairs.max() >= images:
        raise ValueError(
            f"{ims}: caption {int(np.argmax(pairs)) + 1} is paired with image {pairs.max()}, but the array "
            f"holds {images} images (0 to {images - 1}); the pairs or the features are of another data set."
        )
    without = np.flatnonzero(np.bincount(pairs, minlength=images) == 0)
    if len(without):
        raise ValueError(
            f"{ims}: {len(without)} of {images} images have no caption (first rows {without[:5].tolist()}); "
            "pair a caption with each, or leave those images out."
        )
    return pairs


def fit_ids(path: Path, ids: list[str], images: int, captions: int) -> list[str]:
    """One id an image, from one line an image or one line a caption with the image's id repeated."""
    if len(ids) == images:
        return ids
    times = captions // images
    if len(ids) == captions == images * times and _constant(ids, times):
        return ids[::times]
    raise ValueError(
        f"{path}: {len(ids)} ids for {images} images with {captions} captions; write one an image, in row order."
    )


def _constant(ids: Sequence[str], times: int) -> bool:
    return all(ids[i] == ids[i - i % times] for i in range(len(ids)))
