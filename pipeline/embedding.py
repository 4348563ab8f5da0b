"""Encode a split, score it tile by tile, and write embeddings by blocks, so that a killed run continues."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from jaxtyping import Float, Float32, Integer
from numpy.lib.format import open_memmap

from aoq.models.base import Code, EmbeddingModel, MatchingModel, concatenate
from aoq.pipeline.console import Reporter
from aoq.pipeline.data.batches import PairData
from aoq.pipeline.engine import products_in
from aoq.pipeline.search.problem import blocks
from aoq.pipeline.search.units import Runner, Store, Unit, run_in_process, unit_name

BATCH = 256
SCORED_IMAGES, SCORED_CAPTIONS = 128, 512
STORE_ROWS = 1024


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
    store: Store,
    progress: Reporter = lambda done, total, text: None,
    run: Runner[EncodedSides] = run_in_process,
) -> None:
    """Encode `images` and `captions` into `folder`, by blocks, which the next run after a kill finds in `store`."""
    rows = [(name, *block) for name, side in sides.items() for block in blocks(side.count, STORE_ROWS)]
    units = [Unit((unit_name(*block),), partial(encode_block, *block)) for block in rows]
    run([units], sides, store, lambda done, total: progress(done, total, f"blocks of {STORE_ROWS} vectors"))
    for name, start, stop in rows:
        block = store.read(unit_name(name, start, stop))["vector"].combine_chunks()
        vectors, path = block.flatten().to_numpy().reshape(len(block), -1), folder / f"{name}.npy"
        stored = np.load(path, mmap_mode="r+") if start else reserved_file(path, (sides[name].count, vectors.shape[1]))
        stored[start:stop] = vectors
        stored.flush()


@torch.inference_mode()
@products_in("float32")
def encode_block(name: str, start: int, stop: int, sides: EncodedSides, store: Store) -> list[pa.Table]:
    """Encode a side's rows from `start` to before `stop`, one list per row."""
    batches = [np.arange(start + first, start + last) for first, last in blocks(stop - start, BATCH)]
    block = torch.cat([sides[name].vectors(rows) for rows in batches]).float().cpu().numpy()
    if not np.isfinite(block).all():
        raise ValueError(f"the embedding of one of {name} {start} to {stop - 1} is not finite; the model is broken.")
    return [pa.table({"vector": pa.FixedSizeListArray.from_arrays(block.reshape(-1), block.shape[1])})]
