"""Noisy correspondence: wrong pairs, and a Parquet file with the probability that each pair is right.

Captions of a training split are paired with other images, drawn at random or read from a file. Every image keeps
captions: captions are permuted among images, never removed.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Float32, Int32, Int64

from aoq.pipeline.columns import read_parquet
from aoq.pipeline.config.dataset import Noise
from aoq.pipeline.data.files import misfit
from aoq.pipeline.files import write_atomically
from aoq.pipeline.reading import open_array

STREAM = int.from_bytes(b"noise", "big")
"""Entropy besides the seed, which alone would draw the captions that a training with the same seed visits first."""
CLEAN_PAIRS = "clean_pairs.parquet"
"""The file beside the weights of co-taught networks."""
CLEAN_PAIR_COLUMNS = pa.schema({"caption_id": pa.int64(), "probability": pa.float64()})
"""Row n is caption n; narrower types fit."""


def draw_noise(image_of: Int32[np.ndarray, " captions"], noise: Noise) -> Int64[np.ndarray, " captions"]:
    """Permute the images of a fraction of the captions, or of the images; return the image of every caption."""
    assert noise.ratio is not None
    rng, is_by_image = np.random.default_rng([STREAM, noise.seed]), noise.level == "image"
    values = np.arange(int(image_of.max()) + 1) if is_by_image else image_of.astype(np.int64)
    chosen = rng.permutation(len(values))[: int(noise.ratio * len(values))]  # as in NCR's code
    values[chosen] = values[rng.permutation(chosen)]  # some may keep their image
    return values[image_of] if is_by_image else values


def read_noise(path: Path, image_of: Int32[np.ndarray, " captions"]) -> Int64[np.ndarray, " captions"]:
    """Read a noise file, with one row per caption or per image, as the image of every caption."""
    rows, captions, images = open_array(path), len(image_of), int(image_of.max()) + 1
    if rows.ndim != 1 or rows.dtype.kind not in "iu" or len(rows) not in (captions, images):
        shapes = f"shape ({captions},), or one per image, ({images},)"
        needs = f"a noise file has one integer image row per caption, {shapes}"
        raise misfit(path, rows, needs, "It belongs to another data set, or is not a noise file.")
    if len(wrong := np.flatnonzero((rows < 0) | (rows >= images))):
        entry = f"entry {wrong[0]} is {rows[wrong[0]]}"
        raise ValueError(f"{path}: {entry}, but the training images are 0 to {images - 1}.")
    pairing: Int64[np.ndarray, " captions"] = (rows if len(rows) == captions else rows[image_of]).astype(np.int64)
    before, after = (np.bincount(of, minlength=images) for of in (image_of, pairing))
    if not np.array_equal(np.sort(before), np.sort(after)):
        lost = int(np.argmax(np.abs(after - before)))
        raise ValueError(
            f"{path} is not a permutation: it gives image {lost}, which has {before[lost]} captions, {after[lost]}; "
            "noise must not change the numbers of captions."
        )
    return pairing


def write_clean_pairs(path: Path, probabilities: Float32[np.ndarray, " captions"]) -> None:
    table = pa.table([np.arange(len(probabilities), dtype=np.int32), probabilities], names=CLEAN_PAIR_COLUMNS.names)
    write_atomically(path, partial(pq.write_table, table, compression="zstd", write_page_checksum=True))


def read_clean_pairs(path: Path, captions: int) -> Float32[np.ndarray, " captions"]:
    """Read the probabilities of this many captions, in their order."""
    remedy = f"an experiment with [co_teaching] writes {CLEAN_PAIRS} beside its weights"
    rows, probabilities = (
        column.to_numpy() for column in read_parquet(path, CLEAN_PAIR_COLUMNS, remedy=remedy).columns
    )
    if not np.array_equal(rows, np.arange(captions)):
        raise ValueError(
            f"{path} belongs to other captions: it has {len(rows)} rows for {captions} captions, and needs one row "
            "per caption, in order. Take the file of an experiment on the same training split."
        )
    if not ((probabilities >= 0).all() and (probabilities <= 1).all()):
        raise ValueError(f"{path}: some probabilities are not between 0 and 1; correct them.")
    return probabilities.astype(np.float32)
