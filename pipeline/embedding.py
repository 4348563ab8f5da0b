"""Encoding a split, scoring it tile by tile, and the EmbeddingStore on disk."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float32, Integer
from numpy.lib.format import open_memmap

from aoq.models.base import Code, EmbeddingModel, MatchingModel, concatenate
from aoq.pipeline.artifact import write_atomically
from aoq.pipeline.data.batches import PairData

BATCH = 256
TILE_IMAGES, TILE_CAPTIONS = 128, 512
STORE_ROWS = 4096


def encode_images(
    model: MatchingModel, pairs: PairData, device: torch.device, rows: Integer[np.ndarray, " some"] | None = None
) -> Code:
    """The codes of these images of the split, or of all, in order."""
    rows = np.arange(pairs.split.image_count) if rows is None else rows
    blocks = [model.encode_images(pairs.images(block).to(device)) for block in _blocks(rows, BATCH)]
    return concatenate(blocks)


def encode_captions(
    model: MatchingModel, pairs: PairData, device: torch.device, rows: Integer[np.ndarray, " some"] | None = None
) -> Iterator[tuple[Integer[np.ndarray, " tile"], Code]]:
    """Tiles of these captions, or of all, of like lengths, with their rows: little padding, and none of it matters."""
    rows = np.arange(pairs.split.caption_count) if rows is None else rows
    by_length = rows[np.argsort(pairs.tokens.lengths[rows], kind="stable")]
    for tile in _blocks(by_length, TILE_CAPTIONS):
        yield tile, model.encode_captions(pairs.captions(tile).to(device))


@torch.inference_mode()
def similarity_matrix(
    model: MatchingModel, pairs: PairData, device: torch.device, file: Path | None = None
) -> Float32[np.ndarray, "images captions"]:
    """Every image of an evaluation split against every caption, in eval mode; working memory is one tile.

    With `file`, an .npy to be written, the matrix is that file's, mapped.
    """
    model.eval()
    images = encode_images(model, pairs, device)
    shape = (pairs.split.image_count, pairs.split.caption_count)
    similarity = np.empty(shape, np.float32) if file is None else reserved_file(file, shape)
    for columns, captions in encode_captions(model, pairs, device):
        for start in range(0, len(images), TILE_IMAGES):
            tile = model.similarity(images[start : start + TILE_IMAGES], captions)
            similarity[start : start + TILE_IMAGES, columns] = tile.float().cpu().numpy()
    return similarity


def reserved_file(path: Path, shape: tuple[int, int]) -> Float32[np.ndarray, "rows columns"]:
    """A new .npy, mapped to be filled. Its blocks are taken first: a full disk is an error, not a killed process."""
    mapped = open_memmap(path, "w+", np.float32, shape)
    with path.open("r+b") as file:
        os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    return mapped


@dataclass(frozen=True)
class EmbeddingStore:
    """`images.npy` (I, D) and `captions.npy` (C, D), float32, memory-mapped, rows in the split's order.

    Mapped copy-on-write, so that torch takes them as they are; the files stay as they are.
    """

    images: Float32[np.ndarray, "images D"]
    captions: Float32[np.ndarray, "captions D"]

    @classmethod
    def open(cls, folder: Path) -> EmbeddingStore:
        return cls(np.load(folder / "images.npy", mmap_mode="c"), np.load(folder / "captions.npy", mmap_mode="c"))


@torch.inference_mode()
def write_embeddings(
    model: EmbeddingModel,
    pairs: PairData,
    folder: Path,
    device: torch.device,
    progress: Callable[[int, int, str], None] = lambda done, total, text: None,
) -> None:
    """Encode the split into `folder`, a block at a time; an interrupted run goes on after its last whole block."""
    model.eval()
    sides: dict[str, tuple[int, Callable[[np.ndarray], Code]]] = {
        "images": (pairs.split.image_count, lambda rows: model.encode_images(pairs.images(rows).to(device))),
        "captions": (
            pairs.split.caption_count,
            lambda rows: model.encode_captions(pairs.captions(rows).to(device)),
        ),
    }
    total = sum(count for count, _ in sides.values())
    for side, (count, encode) in sides.items():
        state, path = folder / f"{side}.progress.json", folder / f"{side}.npy"
        done = json.loads(state.read_text())["rows"] if state.is_file() else 0
        for rows in _blocks(np.arange(done, count), STORE_ROWS):
            block = np.concatenate([encode(part).vectors.float().cpu().numpy() for part in _blocks(rows, BATCH)])
            if not np.isfinite(block).all():
                raise ValueError(
                    f"the embedding of one of {side} {rows[0]} to {rows[-1]} is not finite; the model is broken."
                )
            _write_rows(path, int(rows[0]), block, count)
            write_atomically(state, json.dumps({"rows": int(rows[-1]) + 1}).encode())
            progress(int(rows[-1]) + 1 + (total - count if side == "captions" else 0), total, side)
    for side in sides:
        (folder / f"{side}.progress.json").unlink(missing_ok=True)


def _write_rows(path: Path, start: int, block: Float32[np.ndarray, "rows D"], count: int) -> None:
    """Put rows into a (count, D) .npy that holds those before them.

    Written as a file, not through a memory map: a full disk is an error then, not a killed process.
    """
    with path.open("r+b" if start else "w+b") as file:
        header = {"descr": "<f4", "fortran_order": False, "shape": (count, block.shape[1])}
        np.lib.format.write_array_header_1_0(file, header)
        file.seek(start * block.shape[1] * 4, os.SEEK_CUR)
        file.write(block.astype("<f4").tobytes())
        file.truncate()
        file.flush()
        os.fsync(file.fileno())


def _blocks(rows: np.ndarray, size: int) -> Iterator[np.ndarray]:
    for start in range(0, len(rows), size):
        yield rows[start : start + size]
