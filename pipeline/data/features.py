"""The arrays of a dataset folder: memory-mapped, never unpickled, checked for rank and type when opened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Shaped
from numpy.lib.format import open_memmap

FEATURE_TYPES = (np.dtype(np.float32), np.dtype(np.float16))


def open_array(path: Path) -> np.memmap[Any, Any]:
    """The array of a `.npy` file as a read-only memory map; refuses truncated files and pickled objects."""
    try:
        return open_memmap(path, mode="r")
    except (ValueError, EOFError) as error:
        raise ValueError(
            f"{path}: cannot be memory-mapped ({error}); it has {path.stat().st_size:,} bytes. Copy it again if it "
            "was cut short, or write it with numpy.save as a plain array of numbers, without Python objects."
        ) from error


def open_features(path: Path) -> Float[np.ndarray, "rows regions features"]:
    """`{split}_ims.npy` (rows, regions, features) as it is on disk, float32 or float16."""
    features = open_array(path)
    if features.ndim != 3 or 0 in features.shape:
        raise ValueError(
            f"{path}: image features need shape (images, regions, features), none of them 0; this array has "
            f"{features.shape}. One global vector an image is (images, 1, features): reshape it."
        )
    if features.dtype not in FEATURE_TYPES:
        raise ValueError(
            f"{path}: image features need dtype float32 or float16 in this machine's byte order; this array "
            f"has {features.dtype.str}. Convert it once: numpy.save(path, array.astype('float16'))."
        )
    return features


def open_boxes(path: Path, rows: int, regions: int) -> Float[np.ndarray, "rows regions coordinates"]:
    """`{split}_boxes.npy`: x1, y1, x2, y2 of every region, as shares of the image's width and height.

    PFAN's own arrays are taken as they are: 2K numbers a region (K > 2), its grid blocks and their shares.
    """
    boxes = open_array(path)
    fits = boxes.shape[:2] == (rows, regions) and boxes.ndim == 3 and boxes.dtype.kind == "f"
    if not fits or boxes.shape[2] < 4 or boxes.shape[2] % 2:
        raise ValueError(
            f"{path}: boxes need shape {(rows, regions, 4)} like the features and a float dtype; this array "
            f"has {boxes.shape} {boxes.dtype}. Write x1, y1, x2, y2 in [0, 1] a region, or remove the file."
        )
    return boxes


def read_mask(path: Path, rows: int, regions: int) -> Bool[np.ndarray, "rows regions"]:
    """`{split}_mask.npy`: True where a region is real. In memory: a byte a region."""
    mask = open_array(path)
    if mask.shape != (rows, regions) or not np.isin(mask, (0, 1)).all():
        raise ValueError(
            f"{path}: the mask needs shape {(rows, regions)} like the features and only True and False (or 1 and "
            f"0); this array has {mask.shape} {mask.dtype}. Write True at real regions, or remove the file."
        )
    return np.array(mask, dtype=np.bool_)


def is_repeated(rows: Shaped[np.ndarray, "rows ..."], times: int, *, blocks: int = 16) -> bool:
    """Whether each `times` rows are the same, judged by evenly spaced blocks, the first and the last among them."""
    starts = np.unique(np.linspace(0, len(rows) // times - 1, blocks).astype(np.int64)) * times
    return all(np.array_equal(rows[start], rows[start + i]) for start in starts for i in range(1, times))
