"""Photographs of a prepared folder, and an encoder's vectors of them and their captions."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Integer, UInt8
from torch import Tensor

from aoq.models.towers.preprocessing import stacked
from aoq.pipeline.digests import digest, file_sha256
from aoq.pipeline.embedding_blocks import Side
from aoq.pipeline.extras import import_extra
from aoq.pipeline.prepare.encoders import Encoder
from aoq.pipeline.prepare.images import FORMATS, decode
from aoq.pipeline.prepare.photographs import Photographs, open_photographs
from aoq.pipeline.prepare.sources.listing import Files

AT_ONCE = 32
"""Images or captions encoded at once."""


def photograph_files(folder: Path, split: str, images: int, unpacked: Path | None = None) -> Sequence[str] | None:
    """Return the file of each photograph, if the prepared folder names them.

    With `unpacked`, a folder to make, packed ones are written there, and others are checked against the prepared ones;
    without it, files are not read.
    """
    if not (folder / f"{split}_images.parquet").is_file():
        return None
    photographs = open_photographs(folder, split, images)
    if isinstance(photographs.images, Files):
        if unpacked is not None:
            with ThreadPoolExecutor() as pool:
                deque(pool.map(photographs.read, range(images)), maxlen=0)
        return photographs.images.files
    if unpacked is None:
        return None
    unpacked.mkdir()
    return [str(_written(unpacked / str(row), photographs.read(row))) for row in range(images)]


def encoding_of(folder: Path, split: str, encoder: Encoder) -> str:
    """Identify an encoder's vectors of a split by its weights, the photographs and the captions."""
    read = (folder / f"{split}_{name}" for name in ("images.parquet", "caps.txt"))
    return digest([encoder.images.fingerprint, *map(file_sha256, read)])


def _written(path: Path, content: bytes) -> Path:
    """Write the photograph to a file with the suffix of its format."""
    with import_extra("PIL.Image", "prepare", "reading images").open(io.BytesIO(content), formats=FORMATS) as opened:
        path = path.with_suffix(f".{opened.format.lower()}")
    path.write_bytes(content)
    return path


def encoded_sides(
    photographs: Photographs, count: int, captions: Sequence[str], encoder: Encoder, device: torch.device
) -> dict[str, Side]:
    """Encode photographs and captions as unit vectors, in order; threads read photographs ahead."""
    seen, pool = encoder.images.preprocessing, ThreadPoolExecutor()
    encoder.images.to(device)

    def pixels(row: int) -> UInt8[np.ndarray, "height width 3"]:
        content = photographs.read(row)
        try:
            return seen.pixels(decode(content, seen.least).image)
        except ValueError as error:
            raise ValueError(f"{photographs.images.describe(row)}: {error}; prepare the folder again.") from None

    def of_images(rows: list[int]) -> Float[Tensor, "some dims"]:
        parts = stacked(pool.map(pixels, rows))
        return torch.cat([encoder.images.encoded(part, device)[:, 0] for part in parts])

    def of_captions(rows: list[int]) -> Float[Tensor, "some dims"]:
        return encoder.texts([captions[row] for row in rows], device)

    return {
        "images": Side(count, partial(_in_parts, of_images)),
        "captions": Side(len(captions), partial(_in_parts, of_captions)),
    }


def _in_parts(
    encode: Callable[[list[int]], Float[Tensor, "some dims"]], rows: Integer[np.ndarray, " rows"]
) -> Float[Tensor, "rows dims"]:
    parts = [encode(rows[start : start + AT_ONCE].tolist()) for start in range(0, len(rows), AT_ONCE)]
    return torch.nn.functional.normalize(torch.cat(parts).float(), dim=1)
