"""A small dataset folder that a test can spoil."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

IMAGES, CAPTIONS, REGIONS, FEATURES = 4, 12, 3, 5


@pytest.fixture
def write_split(tmp_path: Path) -> Callable[..., Path]:
    """Write the split; keyword `ims`, `caps`, `ids`, `boxes`, `mask`, `pairs` replaces a file, None leaves it out."""

    def write(split: str = "train", **files: object) -> Path:
        rng = np.random.default_rng(len(split))
        content: dict[str, object] = {
            "ims": rng.standard_normal((IMAGES, REGIONS, FEATURES)).astype(np.float16),
            "caps": [f"Caption {caption} of {split}" for caption in range(CAPTIONS)],
            "ids": None,
            "boxes": None,
            "mask": None,
            "pairs": None,
        }
        for kind, value in (content | files).items():
            name = tmp_path / (f"{split}_{kind}.txt" if kind in ("caps", "ids") else f"{split}_{kind}.npy")
            if isinstance(value, bytes):
                name.write_bytes(value)
            elif isinstance(value, list):
                name.write_bytes("".join(f"{line}\n" for line in value).encode())
            elif value is not None:
                np.save(name, value)
        return tmp_path

    return write


@pytest.fixture
def boxes() -> np.ndarray:
    return np.tile(np.array([0.1, 0.2, 0.5, 1.0], dtype=np.float32), (IMAGES, REGIONS, 1))
