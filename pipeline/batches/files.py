"""Batches as files: `epoch-000.parquet` and so on, and `manifest.json`.

An epoch has one row per pair, in the order of training:

    batch       int32    from 0; the last may be short
    image_id    int32    row of the images
    caption_id  int32    row of the captions
    image       string   ids of these rows, if the table has ids
    caption     string

The manifest says how they were made, from which lists (`table_sha256`), and how hard the batches are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Int

from aoq.pipeline.digests import file_sha256
from aoq.pipeline.scratch import write_atomically
from aoq.pipeline.tables.files import MANIFEST

FORMAT_VERSION = 1


def write_epoch(
    folder: Path, epoch: int, batches: Sequence[Int[np.ndarray, "_ 2"]], ids: Mapping[str, Sequence[str]]
) -> None:
    """Write the batches of an epoch, pairs (image, caption), into an existing folder."""
    pairs = np.concatenate(batches)
    columns: dict[str, Any] = {
        "batch": np.repeat(np.arange(len(batches), dtype=np.int32), [len(batch) for batch in batches]),
        "image_id": pairs[:, 0].astype(np.int32),
        "caption_id": pairs[:, 1].astype(np.int32),
    }
    for name, side, rows in (("image", "images", pairs[:, 0]), ("caption", "captions", pairs[:, 1])):
        if side in ids:
            columns[name] = pa.array(ids[side], pa.string()).take(pa.array(rows))
    pq.write_table(pa.table(columns), folder / f"epoch-{epoch:03d}.parquet", compression="zstd")


def write_batches_manifest(folder: Path, said: Mapping[str, Any]) -> None:
    """Write how the batches were made, with the hash of each epoch's file."""
    files = {path.name: file_sha256(path) for path in sorted(folder.glob("epoch-*.parquet"))}
    whole = {"format_version": FORMAT_VERSION, **said, "files": files}
    write_atomically(folder / MANIFEST, (json.dumps(whole, indent=1) + "\n").encode())
