"""Embeddings written to disk block by block: a killed run continues, and any process can encode a block."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from jaxtyping import Float, Float32, Integer

from aoq.models.base import EmbeddingModel
from aoq.pipeline.arithmetic import products_in
from aoq.pipeline.data.batches import PairData
from aoq.pipeline.embedding import BATCH, parts_of, reserved_file
from aoq.pipeline.reading import open_array, read_json
from aoq.pipeline.scratch import write_atomically
from aoq.pipeline.search.problem import blocks
from aoq.pipeline.search.store import Memory, Store
from aoq.pipeline.search.units import Runner, Unit, run_in_order, run_in_process, unit_name

logger = logging.getLogger(__name__)

STORE_ROWS = 1024
SIDES = ("images", "captions")
HEADER_BYTES = 128
"""Size of the header of a two-dimensional .npy file."""


@dataclass(frozen=True)
class Side:
    """Images or captions: their number, and the vectors of some rows."""

    count: int
    vectors: Callable[[Integer[np.ndarray, " some"]], Float[torch.Tensor, "some D"]]


def sides_of(model: EmbeddingModel, pairs: PairData, device: torch.device) -> dict[str, Side]:
    """Return both sides of the split as the model encodes them, in eval mode."""
    model.eval()
    images = Side(pairs.split.image_count, lambda rows: model.encode_images(pairs.images(rows).to(device)).vectors)
    captions = Side(
        pairs.split.caption_count, lambda rows: model.encode_captions(pairs.captions(rows).to(device)).vectors
    )
    return {"images": images, "captions": captions}


def write_embeddings(
    sides: Mapping[str, Side],
    folder: Path,
    progress: Callable[[int, int, str], None] = lambda done, total, text: None,
    *,
    run: Runner[Mapping[str, Side]] = run_in_process,
    store: Store | None = None,
) -> None:
    """Encode `images` and `captions` into `folder` block by block; a killed run continues after its last intact block.

    Checksums of the blocks tell which are intact; `finish_embeddings` deletes them. `run` encodes the blocks as units,
    which leave their vectors in the store, by default in memory, until they are written to `folder`.
    """
    intact = {
        name: _intact_blocks(folder / f"{name}.npy", _progress_file(folder, name), sides[name].count) for name in sides
    }
    left = [
        (name, start, stop)
        for name, side in sides.items()
        for start, stop in blocks(side.count, STORE_ROWS)[len(intact[name]) :]
    ]
    counts = [side.count for side in sides.values()]
    before = dict(zip(sides, np.cumsum([0, *counts]).tolist(), strict=False))

    def take(number: int, table: pa.Table) -> None:
        name, start, stop = left[number]
        path, block = folder / f"{name}.npy", _vectors_of(table)
        stored = np.load(path, mmap_mode="r+") if start else reserved_file(path, (sides[name].count, block.shape[1]))
        stored[start:stop] = block
        stored.flush()
        intact[name].append(_checksum(path, block))
        write_atomically(_progress_file(folder, name), json.dumps(intact[name]).encode())
        progress(before[name] + stop, sum(counts), name)

    units = [Unit((unit_name(*block),), partial(encode_block, *block)) for block in left]
    run_in_order(units, sides, store or Memory(), run, take)


@torch.inference_mode()
@products_in("float32")
def encode_block(name: str, start: int, stop: int, sides: Mapping[str, Side], store: Store) -> list[pa.Table]:
    """Encode a side's rows from `start` to before `stop`, one list per row."""
    parts = [sides[name].vectors(rows) for rows in parts_of(np.arange(start, stop), BATCH)]
    block = torch.cat(parts).float().cpu().numpy()
    if not np.isfinite(block).all():
        raise ValueError(f"the embedding of one of {name} {start} to {stop - 1} is not finite; the model is broken.")
    return [pa.table({"vector": pa.FixedSizeListArray.from_arrays(block.reshape(-1), block.shape[1])})]


def _vectors_of(table: pa.Table) -> Float32[np.ndarray, "rows D"]:
    return table["vector"].combine_chunks().flatten().to_numpy().reshape(len(table), -1)


def finish_embeddings(folder: Path) -> None:
    """Delete the files that only a resumed run needs."""
    for side in SIDES:
        _progress_file(folder, side).unlink(missing_ok=True)


def _progress_file(folder: Path, side: str) -> Path:
    return folder / f"{side}.progress.json"


def _intact_blocks(path: Path, state: Path, count: int) -> list[str]:
    """Return the checksums of the leading blocks that are still as they were written."""
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
