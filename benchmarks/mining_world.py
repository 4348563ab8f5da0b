"""The worlds of `mining.py` and `gpu_mining.py`: clustered vectors of norm 1; each image has five captions.

2 in 100 captions have the vector of another.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

EACH = 5
SIZES = {
    "S": (2_000, 512),
    "M": (5_000, 1024),
    "L": (6_000, 2048),
    "XL": (29_000, 1024),
    "XL2048": (29_000, 2048),
    "COCO": (113_287, 1024),
}
CLUSTER = 40
DUPLICATES = 0.02
BLOCK = 4096


def make_world(place: Path, images: int, dimensions: int) -> None:
    """Clusters of 40 images; captions near their image; block by block, so that any size fits."""
    if (place / "captions.npy").is_file():
        return
    place.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((max(1, images // CLUSTER), dimensions), dtype=np.float32)
    files = {
        side: np.lib.format.open_memmap(place / f"{side}.tmp.npy", "w+", np.float32, (count, dimensions))
        for side, count in (("images", images), ("captions", EACH * images))
    }
    for start in range(0, images, BLOCK):
        stop = min(start + BLOCK, images)
        block = centres[rng.integers(0, len(centres), stop - start)]
        block = block + rng.standard_normal(block.shape, dtype=np.float32)
        near = np.repeat(block, EACH, axis=0)
        near += 1.5 * rng.standard_normal(near.shape, dtype=np.float32)
        copied = np.flatnonzero(rng.random(len(near)) < DUPLICATES)
        near[copied] = near[rng.integers(0, len(near), len(copied))]
        files["images"][start:stop] = block / np.linalg.norm(block, axis=1, keepdims=True)
        files["captions"][EACH * start : EACH * stop] = near / np.linalg.norm(near, axis=1, keepdims=True)
    for side, file in files.items():
        file.flush()
        os.replace(place / f"{side}.tmp.npy", place / f"{side}.npy")
