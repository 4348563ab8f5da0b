"""Mined batches as webdataset's shards: read in order, every `batch_size` samples are a batch.

webdataset has no random access, so an order is an order of the archives. A sample is an image file unchanged, the
caption in `.txt`, and in `.json` the rows: image_id, caption_id and batch.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Integer

SAMPLES = 10_000
"""Approximate number of samples in a shard, which holds whole batches."""


def write_shards(
    folder: Path, batches: Sequence[Integer[np.ndarray, "_ 2"]], pictures: Sequence[str], captions: Sequence[str]
) -> int:
    """Write the batches of an epoch to the new folder as `000000.tar` and so on; return the number of shards."""
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
    return -(-len(batches) // each)


def _add(shard: tarfile.TarFile, name: str, content: bytes) -> None:
    about = tarfile.TarInfo(name)
    about.size = len(content)
    shard.addfile(about, io.BytesIO(content))
