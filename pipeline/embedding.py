"""Encoding a split, scoring it tile by tile, and the EmbeddingStore on disk."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Float32, Integer
from numpy.lib.format import open_memmap

from aoq.models.base import Code, EmbeddingModel, MatchingModel, concatenate
from aoq.pipeline.data.batches import PairData
from aoq.pipeline.reading import open_array, read_json
from aoq.pipeline.scratch import write_atomically

logger = logging.getLogger(__name__)

BATCH = 256
TILE_IMAGES, TILE_CAPTIONS = 128, 512
STORE_ROWS = 4096
SIDES = ("images", "captions")
HEADER_BYTES = 128
"""The size of the header of an .npy file of two dimensions."""


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


def reserved_file(path: Path, shape: tuple[int, int]) -> Float32[np.memmap, "rows columns"]:
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


@dataclass(frozen=True)
class Side:
    """Images or captions: how many, and the vectors of some rows."""

    count: int
    vectors: Callable[[Integer[np.ndarray, " some"]], Float[torch.Tensor, "some D"]]


def sides_of(model: EmbeddingModel, pairs: PairData, device: torch.device) -> dict[str, Side]:
    """The split as the model sees it, in eval mode."""
    model.eval()
    return {
        "images": Side(
            pairs.split.image_count, lambda rows: model.encode_images(pairs.images(rows).to(device)).vectors
        ),
        "captions": Side(
            pairs.split.caption_count, lambda rows: model.encode_captions(pairs.captions(rows).to(device)).vectors
        ),
    }


@torch.inference_mode()
def write_embeddings(
    sides: Mapping[str, Side],
    folder: Path,
    progress: Callable[[int, int, str], None] = lambda done, total, text: None,
) -> None:
    """Encode `images` and `captions` into `folder`, a block at a time; an interrupted run goes on after its last whole
    block.

    What it goes on from (`finish_embeddings` drops it) are the blocks' checksums.
    """
    total, before = sum(side.count for side in sides.values()), 0
    for name, side in sides.items():
        state, path = _progress_file(folder, name), folder / f"{name}.npy"
        checksums = _whole_blocks(path, state, side.count)
        for rows in _blocks(np.arange(len(checksums) * STORE_ROWS, side.count), STORE_ROWS):
            block = torch.cat([side.vectors(part) for part in _blocks(rows, BATCH)]).float().cpu().numpy()
            if not np.isfinite(block).all():
                raise ValueError(
                    f"the embedding of one of {name} {rows[0]} to {rows[-1]} is not finite; the model is broken."
                )
            stored = np.load(path, mmap_mode="r+") if rows[0] else reserved_file(path, (side.count, block.shape[1]))
            stored[rows] = block
            stored.flush()
            checksums.append(_checksum(path, block))
            write_atomically(state, json.dumps(checksums).encode())
            progress(before + int(rows[-1]) + 1, total, name)
        before += side.count


def finish_embeddings(folder: Path) -> None:
    """Drop what only a resumed run needs."""
    for side in SIDES:
        _progress_file(folder, side).unlink(missing_ok=True)


def _progress_file(folder: Path, side: str) -> Path:
    return folder / f"{side}.progress.json"


def _whole_blocks(path: Path, state: Path, count: int) -> list[str]:
    """The checksums of the blocks from the first on that are as they were written."""
    if not state.is_file():
        return []
    try:
        checksums, stored = read_json(state, list[str]), open_array(path)
        if len(stored) != count or stored.dtype != np.dtype("<f4") or not stored.flags.c_contiguous:
            raise ValueError(f"{path} is damaged: it holds {stored.dtype} of shape {stored.shape}.")
    except (ValueError, FileNotFoundError) as error:
        logger.warning("%s All of it is encoded anew.", error)
        return []
    for number, checksum in enumerate(checksums):
        if _checksum(path, stored[number * STORE_ROWS :][:STORE_ROWS]) != checksum:
            logger.warning("%s is damaged; it is encoded anew from row %d on", path, number * STORE_ROWS)
            return checksums[:number]
    return checksums


def _checksum(path: Path, block: Float32[np.ndarray, "rows D"]) -> str:
    """The hash of a block and of the file's header."""
    with path.open("rb") as file:
        found = sha256(file.read(HEADER_BYTES))
    found.update(np.ascontiguousarray(block).data)
    return found.hexdigest()


def _blocks(rows: np.ndarray, size: int) -> Iterator[np.ndarray]:
    for start in range(0, len(rows), size):
        yield rows[start : start + size]
