"""The photographs of a prepared folder, and the vectors that an encoder gives them and their captions."""

from __future__ import annotations

import hashlib
import io
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch
from jaxtyping import Float, Integer, UInt8
from torch import Tensor

from aoq.pipeline.digests import digest, file_sha256
from aoq.pipeline.embedding_blocks import Side
from aoq.pipeline.extras import import_extra
from aoq.pipeline.prepare.encoders import Encoder
from aoq.pipeline.prepare.extractors.preprocessing import stacked
from aoq.pipeline.prepare.images import FORMATS, decode
from aoq.pipeline.prepare.sources.listing import Files, Images, ParquetImages
from aoq.pipeline.reading import reading

AT_ONCE = 32
"""Images, or captions."""


@dataclass(frozen=True)
class Photographs:
    """The photographs of a split in order, as they were when the folder was prepared."""

    images: Images
    sha256: Sequence[str]

    def read(self, row: int) -> bytes:
        """The encoded photograph.

        Raises:
            ValueError: for one that was changed since, or is gone.
        """
        try:
            content = self.images.read(row)
            if hashlib.sha256(content).hexdigest() != self.sha256[row]:
                raise ValueError("was changed since the folder was prepared")
        except (OSError, ValueError) as error:
            raise ValueError(f"{self.images.describe(row)}: {error}; prepare the folder again.") from None
        return content


def open_photographs(folder: Path, split: str, images: int) -> Photographs:
    """The photographs of a split, one for each of its images.

    Raises:
        ValueError: for a folder that does not say where its photographs are, or of how many.
    """
    path = folder / f"{split}_images.parquet"
    if not path.is_file():
        raise ValueError(f"{folder} has no {path.name}, which says where its photographs are; `aoq prepare` makes one.")
    with reading(path, "a list of photographs", "prepare the folder again"):
        file = pq.ParquetFile(path)
        is_packed, listed = "bytes" in file.schema_arrow.names, file.read(["path", "sha256"])
        paths, sha256 = (listed[name].to_pylist() for name in ("path", "sha256"))
    if len(paths) != images:
        raise ValueError(f"{path} lists {len(paths)} photographs, and the split has {images} images; prepare it again.")
    if is_packed:
        return Photographs(ParquetImages([str(path)], "bytes"), sha256)
    if None in paths:
        raise ValueError(f"{path} names no file of image {paths.index(None)}; prepare it again with --pack.")
    return Photographs(Files(paths), sha256)


def photograph_files(folder: Path, split: str, images: int, unpacked: Path | None = None) -> Sequence[str] | None:
    """The file of each photograph, where a prepared folder names them.

    With `unpacked`, a folder to make, packed ones are written there, and others are compared with what was prepared;
    without, they go by their paths alone and are not read.
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
    """The identity of an encoder's vectors of a split: its weights, the photographs and the captions."""
    read = (folder / f"{split}_{name}" for name in ("images.parquet", "caps.txt"))
    return digest([encoder.images.fingerprint, *map(file_sha256, read)])


def _written(path: Path, content: bytes) -> Path:
    """The photograph as a file with the ending of its format."""
    with import_extra("PIL.Image", "prepare", "reading images").open(io.BytesIO(content), formats=FORMATS) as opened:
        path = path.with_suffix(f".{opened.format.lower()}")
    path.write_bytes(content)
    return path


def encoded_sides(
    photographs: Photographs, count: int, captions: Sequence[str], encoder: Encoder, device: torch.device
) -> dict[str, Side]:
    """Unit vectors of the photographs and the captions, in order; photographs are read ahead in threads."""
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
