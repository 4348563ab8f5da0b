"""Write a split's files once its arrays are there: texts, pairs, identities, and the origin of each image."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Int32, Shaped

from aoq.pipeline.prepare.sources.listing import Listing
from aoq.pipeline.search.problem import blocks
from aoq.pipeline.terminal import visible

GROUP_IMAGES = 16
"""Packed images that are read together: a training reads them in random order."""
BLOCK = 4096
SCHEMA = pa.schema(
    {"id": pa.string(), "path": pa.string(), "sha256": pa.string(), "width": pa.int32(), "height": pa.int32()}
)
BYTES = pa.field("bytes", pa.binary())


class Counts(NamedTuple):
    images: int
    captions: int
    copies: int
    """Images that repeat an earlier one of the split, byte for byte."""


def write_split(folder: Path, split: str, listing: Listing, records: np.ndarray) -> Counts:
    """Write everything but the arrays of the images in the `listing`; `records` has one for each."""
    captions = listing.captions
    lengths = np.diff(captions.offsets.to_numpy())
    image_of = np.repeat(np.arange(len(listing), dtype=np.int32), lengths)
    identity = identities(records["sha256"])
    _write_lines(folder / f"{split}_ids.txt", pa.array(map(visible, listing.ids.to_pylist()), pa.string()))
    _write_lines(folder / f"{split}_caps.txt", captions.flatten())
    np.save(folder / f"{split}_pairs.npy", image_of)
    np.save(folder / f"{split}_identity.npy", identity)
    return Counts(len(listing), len(image_of), int((identity != np.arange(len(identity))).sum()))


def identities(hashes: Shaped[np.ndarray, " images"]) -> Int32[np.ndarray, " images"]:
    """Row of the first image with each image's content.

    >>> identities(np.array([b"a", b"b", b"a"], "V1")).tolist()
    [0, 1, 0]
    """
    if not len(hashes):
        return np.empty(0, np.int32)
    _, first, of_image = np.unique(hashes.view(f"S{hashes.dtype.itemsize}"), return_index=True, return_inverse=True)
    return first[of_image.reshape(-1)].astype(np.int32)


def write_images(path: Path, listing: Listing, records: np.ndarray, *, pack: bool) -> None:
    """Write the origin of each image, and its size; with its encoded bytes if they are to be packed."""
    schema = SCHEMA.append(BYTES) if pack else SCHEMA
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for rows in _groups(len(listing), GROUP_IMAGES if pack else BLOCK):
            places = listing.rows[rows].tolist()
            columns = {
                "id": listing.ids.take(pa.array(rows)),
                "path": [listing.images.path(row) for row in places],
                "sha256": [bytes(value).hex() for value in records["sha256"][rows]],
                "width": records["width"][rows],
                "height": records["height"][rows],
            }
            if pack:
                columns["bytes"] = [listing.images.read(row) for row in places]
            writer.write_table(pa.table(columns, schema=schema))


def _write_lines(path: Path, texts: pa.Array) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for rows in _groups(len(texts), BLOCK):
            file.writelines(f"{text}\n" for text in texts.take(pa.array(rows)).to_pylist())


def _groups(count: int, size: int) -> Iterator[np.ndarray]:
    return (np.arange(start, stop) for start, stop in blocks(count, size))
