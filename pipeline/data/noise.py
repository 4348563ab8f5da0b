"""Noisy correspondence: pair captions of a training split with other images, drawn at random or read from a file.

Every image keeps captions: captions are permuted among images, never removed.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from jaxtyping import Int32, Int64

from aoq.pipeline.config.dataset import Noise
from aoq.pipeline.data.files import misfit
from aoq.pipeline.reading import open_array

STREAM = int.from_bytes(b"noise", "big")
"""Entropy besides the seed, which alone would draw the captions that a training with the same seed visits first."""


def draw_noise(image_of: Int32[np.ndarray, " captions"], noise: Noise) -> Int64[np.ndarray, " captions"]:
    """Permute the images of a fraction of the captions, or of the images; return the image of every caption.

    As in NCR's code, int(ratio * n) are drawn; some of them may keep their image.
    """
    assert noise.ratio is not None
    rng = np.random.default_rng([STREAM, noise.seed])
    if noise.level == "image":
        return _permuted(np.arange(int(image_of.max()) + 1), noise.ratio, rng)[image_of]
    return _permuted(image_of.astype(np.int64), noise.ratio, rng)


def _permuted(values: Int64[np.ndarray, " n"], ratio: float, rng: np.random.Generator) -> Int64[np.ndarray, " n"]:
    chosen = rng.permutation(len(values))[: int(ratio * len(values))]
    values[chosen] = values[rng.permutation(chosen)]
    return values


def read_noise(path: Path, image_of: Int32[np.ndarray, " captions"]) -> Int64[np.ndarray, " captions"]:
    """Read a noise file, with one row per caption or per image, as the image of every caption."""
    rows, captions, images = open_array(path), len(image_of), int(image_of.max()) + 1
    if rows.ndim != 1 or rows.dtype.kind not in "iu" or len(rows) not in (captions, images):
        needs = (
            f"a noise file has one integer image row per caption, shape ({captions},), or one per image, ({images},)"
        )
        raise misfit(path, rows, needs, "It belongs to another data set, or is no noise file.")
    if rows.min() < 0 or rows.max() >= images:
        wrong = int(np.flatnonzero((rows < 0) | (rows >= images))[0])
        raise ValueError(f"{path}: entry {wrong} is {rows[wrong]}, and the training images are 0 to {images - 1}.")
    pairing: Int64[np.ndarray, " captions"] = (rows if len(rows) == captions else rows[image_of]).astype(np.int64)
    before, after = (np.bincount(of, minlength=images) for of in (image_of, pairing))
    if not np.array_equal(np.sort(before), np.sort(after)):
        lost = int(np.argmax(np.abs(after - before)))
        raise ValueError(
            f"{path} is no permutation: it gives image {lost}, which has {before[lost]} captions, {after[lost]}; noise "
            "must not change the numbers of captions."
        )
    return pairing
