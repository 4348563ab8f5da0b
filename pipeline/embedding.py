"""Encode a split, score it tile by tile, and write embeddings block by block, so that a killed run continues."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from jaxtyping import Float, Float32, Integer
from numpy.lib.format import open_memmap

from aoq.models.base import Code, EmbeddingModel, MatchingModel, concatenate
from aoq.pipeline.data.batches import PairData
from aoq.pipeline.engine import products_in
from aoq.pipeline.files import write_atomically
from aoq.pipeline.reading import open_array, read_json
from aoq.pipeline.search.problem import blocks
from aoq.pipeline.search.units import MemoryStore, Runner, Store, Unit, run_in_order, run_in_process, unit_name

logger = logging.getLogger(__name__)

BATCH = 256
SCORED_IMAGES, SCORED_CAPTIONS = 128, 512
STORE_ROWS = 1024
HEADER_BYTES = 128
"""Size of the header of a two-dimensional .npy file."""


def encode_images(
    model: MatchingModel, pairs: PairData, device: torch.device, rows: Integer[np.ndarray, " some"] | None = None
) -> Code:
    """Encode these images of the split, or all, in order."""
    rows = np.arange(pairs.split.image_count) if rows is None else rows
    batches = (rows[start:stop] for start, stop in blocks(len(rows), BATCH))
    return concatenate([model.encode_images(pairs.images(batch).to(device)) for batch in batches])


def encode_captions(
    model: MatchingModel, pairs: PairData, device: torch.device, rows: Integer[np.ndarray, " some"] | None = None
) -> Iterator[tuple[Integer[np.ndarray, " tile"], Code]]:
    """Yield tiles of these captions, or of all, with their rows; similar lengths keep padding small."""
    rows = np.arange(pairs.split.caption_count) if rows is None else rows
    by_length = rows[np.argsort(pairs.tokens.lengths[rows], kind="stable")]
    for start, stop in blocks(len(rows), SCORED_CAPTIONS):
        tile = by_length[start:stop]
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
        for start, stop in blocks(len(images), SCORED_IMAGES):
            similarity[start:stop, columns] = model.similarity(images[start:stop], captions).float().cpu().numpy()
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


@dataclass(frozen=True)
class EncodedSide:
    """Images or captions: their number, and the vectors of some rows."""

    count: int
    vectors: Callable[[Integer[np.ndarray, " some"]], Float[torch.Tensor, "some D"]]


EncodedSides = Mapping[str, EncodedSide]


def model_sides(model: EmbeddingModel, pairs: PairData, device: torch.device) -> EncodedSides:
    """Return both sides of the split as the model encodes them, in eval mode."""
    model.eval()
    return {
        "images": EncodedSide(
            pairs.split.image_count, lambda rows: model.encode_images(pairs.images(rows).to(device)).vectors
        ),
        "captions": EncodedSide(
            pairs.split.caption_count, lambda rows: model.encode_captions(pairs.captions(rows).to(device)).vectors
        ),
    }


def write_embeddings(
    sides: EncodedSides,
    folder: Path,
    progress: Callable[[int, int, str], None] = lambda done, total, text: None,
    *,
    run: Runner[EncodedSides] = run_in_process,
    store: Store | None = None,
) -> None:
    """Encode `images` and `captions` into `folder` block by block; a killed run continues after its last intact block.

    Checksums of the blocks tell which are intact; `finish_embeddings` deletes them. `run` encodes the blocks as units,
    which leave their vectors in the store, by default in memory, until they are written to `folder`.
    """
    intact = {name: _intact_blocks(folder, name, side.count) for name, side in sides.items()}
    left = [
        (name, start, stop)
        for name, side in sides.items()
        for start, stop in blocks(side.count, STORE_ROWS)[len(intact[name]) :]
    ]
    total = sum(side.count for side in sides.values())
    done = total - sum(stop - start for _, start, stop in left)

    def take(number: int, table: pa.Table) -> None:
        nonlocal done
        name, start, stop = left[number]
        path, block = folder / f"{name}.npy", table["vector"].combine_chunks()
        vectors = block.flatten().to_numpy().reshape(len(block), -1)
        stored = np.load(path, mmap_mode="r+") if start else reserved_file(path, (sides[name].count, vectors.shape[1]))
        stored[start:stop] = vectors
        stored.flush()
        intact[name].append(_checksum(path, vectors))
        write_atomically(_progress_file(folder, name), json.dumps(intact[name]).encode())
        done += stop - start
        progress(done, total, name)

    units = [Unit((unit_name(*block),), partial(encode_block, *block)) for block in left]
    run_in_order(units, sides, store or MemoryStore(), run, take)


@torch.inference_mode()
@products_in("float32")
def encode_block(name: str, start: int, stop: int, sides: EncodedSides, store: Store) -> list[pa.Table]:
    """Encode a side's rows from `start` to before `stop`, one list per row."""
    batches = [np.arange(start + first, start + last) for first, last in blocks(stop - start, BATCH)]
    block = torch.cat([sides[name].vectors(rows) for rows in batches]).float().cpu().numpy()
    if not np.isfinite(block).all():
        raise ValueError(f"the embedding of one of {name} {start} to {stop - 1} is not finite; the model is broken.")
    return [pa.table({"vector": pa.FixedSizeListArray.from_arrays(block.reshape(-1), block.shape[1])})]


def finish_embeddings(folder: Path) -> None:
    """Delete the files that only a resumed run needs."""
    for side in ("images", "captions"):
        _progress_file(folder, side).unlink(missing_ok=True)


def _progress_file(folder: Path, side: str) -> Path:
    return folder / f"{side}.progress.json"


def _intact_blocks(folder: Path, side: str, count: int) -> list[str]:
    """Return the checksums of the leading blocks that are still as they were written."""
    path, state = folder / f"{side}.npy", _progress_file(folder, side)
    if not state.is_file():
        return []
    try:
        checksums, stored = read_json(state, list[str]), open_array(path)
        if len(stored) != count or stored.dtype != np.dtype("<f4") or not stored.flags.c_contiguous:
            raise ValueError(f"{path} is damaged: it holds {stored.dtype} of shape {stored.shape}.")
    except (ValueError, FileNotFoundError) as error:
        logger.warning("%s All of it is encoded again.", error)
        return []
    for number, checksum in enumerate(checksums):
        if _checksum(path, stored[number * STORE_ROWS :][:STORE_ROWS]) != checksum:
            logger.warning("%s is damaged; it is encoded again from row %d on", path, number * STORE_ROWS)
            return checksums[:number]
    return checksums


def _checksum(path: Path, block: Float32[np.ndarray, "rows D"]) -> str:
    """Hash a block and the file's header."""
    with path.open("rb") as file:
        checksum = sha256(file.read(HEADER_BYTES))
    checksum.update(np.ascontiguousarray(block).data)
    return checksum.hexdigest()
