"""The files of a dataset folder, each checked when opened.

Arrays are memory-mapped and never unpickled. Texts are UTF-8, one caption or id a line, none of them empty.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from numpy.lib.format import open_memmap

FEATURE_TYPES = (np.dtype(np.float32), np.dtype(np.float16))
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


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


def read_lines(path: Path) -> list[str]:
    """Every line as it stands, without its line end; refuses undecodable bytes and empty lines."""
    content = path.read_bytes()
    for number, problem in line_problems(content):
        raise ValueError(f"{path}:{number}: {problem}")
    return [line.decode("utf-8") for line in split_lines(content)]


def line_problems(content: bytes) -> Iterator[tuple[int, str]]:
    """Line number (from 1) and what is wrong with it, for every bad line."""
    if not content.strip():
        yield 1, "the file is empty; write one line a caption (or id)"
        return
    for number, line in enumerate(split_lines(content), start=1):
        try:
            if not line.decode("utf-8").strip():
                yield number, "the line is empty; write its caption (or id), or remove the line"
        except UnicodeDecodeError as error:
            byte = f"byte {error.start + 1} (0x{line[error.start]:02x})"
            yield number, f"{byte} is not UTF-8; save the file as UTF-8"


def split_lines(content: bytes) -> list[bytes]:
    """The lines without their ends. Bytes, because `str.splitlines` also cuts at characters a caption may hold."""
    lines = content.removeprefix(BYTE_ORDER_MARK).removesuffix(b"\n").split(b"\n")
    return [line.removesuffix(b"\r") for line in lines]
