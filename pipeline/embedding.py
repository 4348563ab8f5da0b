"""Encode a split, score it tile by tile, and keep embeddings on disk."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float32, Integer
from numpy.lib.format import open_memmap

from aoq.models.base import Code, MatchingModel, concatenate
from aoq.pipeline.arithmetic import products_in
from aoq.pipeline.data.batches import PairData

BATCH = 256
TILE_IMAGES, TILE_CAPTIONS = 128, 512


def encode_images(
    model: MatchingModel, pairs: PairData, device: torch.device, rows: Integer[np.ndarray, " some"] | None = None
) -> Code:
    """Encode these images of the split, or all, in order."""
    rows = np.arange(pairs.split.image_count) if rows is None else rows
    return concatenate([model.encode_images(pairs.images(part).to(device)) for part in parts_of(rows, BATCH)])


def encode_captions(
    model: MatchingModel, pairs: PairData, device: torch.device, rows: Integer[np.ndarray, " some"] | None = None
) -> Iterator[tuple[Integer[np.ndarray, " tile"], Code]]:
    """Yield tiles of these captions, or of all, with their rows; similar lengths keep padding small."""
    rows = np.arange(pairs.split.caption_count) if rows is None else rows
    by_length = rows[np.argsort(pairs.tokens.lengths[rows], kind="stable")]
    for tile in parts_of(by_length, TILE_CAPTIONS):
        yield tile, model.encode_captions(pairs.captions(tile).to(device))


@torch.inference_mode()
@products_in("float32")
def similarity_matrix(
    model: MatchingModel,
    pairs: PairData,
    device: torch.device,
    file: Path | None = None,
    rows: Integer[np.ndarray, " images"] | None = None,
) -> Float32[np.ndarray, "images captions"]:
    """Score every image of an evaluation split, or these `rows`, against every caption, in eval mode.

    Working memory is one tile. With `file`, the matrix is written to this .npy file and returned memory-mapped.
    """
    model.eval()
    images = encode_images(model, pairs, device, rows)
    shape = (len(images), pairs.split.caption_count)
    similarity = np.empty(shape, np.float32) if file is None else reserved_file(file, shape)
    for columns, captions in encode_captions(model, pairs, device):
        for start in range(0, len(images), TILE_IMAGES):
            tile = model.similarity(images[start : start + TILE_IMAGES], captions)
            similarity[start : start + TILE_IMAGES, columns] = tile.float().cpu().numpy()
    return similarity


def reserved_file(path: Path, shape: tuple[int, int]) -> Float32[np.memmap, "rows columns"]:
    """Map a new .npy file to fill. Disk blocks are reserved first: a full disk is an error, not a killed process."""
    mapped = open_memmap(path, "w+", np.float32, shape)
    with path.open("r+b") as file:
        os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    return mapped


@dataclass(frozen=True)
class EmbeddingStore:
    """`images.npy` (I, D) and `captions.npy` (C, D), float32, memory-mapped, rows in the split's order.

    They are mapped copy-on-write: torch takes such arrays without a copy, and the files stay unchanged.
    """

    images: Float32[np.ndarray, "images D"]
    captions: Float32[np.ndarray, "captions D"]

    @classmethod
    def open(cls, folder: Path) -> EmbeddingStore:
        return cls(np.load(folder / "images.npy", mmap_mode="c"), np.load(folder / "captions.npy", mmap_mode="c"))


def parts_of(rows: Integer[np.ndarray, " rows"], size: int) -> Iterator[Integer[np.ndarray, " some"]]:
    """Iterate over blocks of up to `size` rows."""
    for start in range(0, len(rows), size):
        yield rows[start : start + size]
