"""Batches as files: `epoch-000.parquet` and so on (docs/formats/table.md), `manifest.json`, and webdataset's shards.

The manifest says how they were made, from which lists (`table_sha256`), and how hard the batches are.

webdataset's shards hold an epoch in order: every `batch_size` samples are a batch. A sample is an image file unchanged,
the caption in `.txt`, and in `.json` the rows: image_id, caption_id and batch.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Int, Integer

from aoq.pipeline.files import file_sha256
from aoq.pipeline.tables.files import write_manifest

_FORMAT_VERSION = 1
SAMPLES = 10_000
"""Approximate number of samples in a shard, which holds whole batches."""


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


def write_batches_manifest(folder: Path, about: Mapping[str, Any]) -> None:
    """Write how the batches were made, with the hash of each epoch's file."""
    files = {path.name: file_sha256(path) for path in sorted(folder.glob("epoch-*.parquet"))}
    write_manifest(folder, {"format_version": _FORMAT_VERSION, **about, "files": files})


def write_shards(
    folder: Path, batches: Sequence[Integer[np.ndarray, "_ 2"]], pictures: Sequence[str], captions: Sequence[str]
) -> None:
    """Write the batches of an epoch to the new folder as `000000.tar` and so on."""
    folder.mkdir()
    each = max(1, SAMPLES // len(batches[0]))
    for first in range(0, len(batches), each):
        with tarfile.open(folder / f"{first // each:06d}.tar", "w") as shard:
            for number, batch in enumerate(batches[first : first + each], start=first):
                for place, (image, caption) in enumerate(batch.tolist()):
                    key, rows = f"{number:06d}-{place:05d}", {"image_id": image, "caption_id": caption, "batch": number}
                    picture = Path(pictures[image])
                    _add(shard, f"{key}{picture.suffix.lower()}", picture.read_bytes())
                    _add(shard, f"{key}.txt", captions[caption].encode())
                    _add(shard, f"{key}.json", json.dumps(rows).encode())


def _add(shard: tarfile.TarFile, name: str, content: bytes) -> None:
    about = tarfile.TarInfo(name)
    about.size = len(content)
    shard.addfile(about, io.BytesIO(content))
