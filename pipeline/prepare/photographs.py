"""`{split}_images.parquet` of a prepared folder: where its photographs are, or their bytes; they must be unchanged."""

from __future__ import annotations

import hashlib
import io
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from aoq.pipeline.columns import open_parquet
from aoq.pipeline.data.images import DECODED_FORMATS, decode
from aoq.pipeline.extras import import_extra
from aoq.pipeline.files import digest
from aoq.pipeline.prepare.sources.images import EncodedImages, ImageFiles, ParquetImages
from aoq.pipeline.search.problem import blocks

if TYPE_CHECKING:
    from PIL.Image import Image

PHOTOGRAPHS = pa.schema(
    {"id": pa.string(), "path": pa.string(), "sha256": pa.string(), "width": pa.int32(), "height": pa.int32()}
)
PACKED = PHOTOGRAPHS.append(pa.field("bytes", pa.binary()))
GROUP_IMAGES = 16
"""Packed images that are read together: a training reads them in random order."""
LISTED_ROWS = 4096


def write_photographs(path: Path, ids: pa.Array, images: EncodedImages, described: np.ndarray, *, pack: bool) -> None:
    """Write each image's path, with the sha256, width and height that are `described`; and its bytes, to pack it."""
    schema = PACKED if pack else PHOTOGRAPHS
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for start, stop in blocks(len(ids), GROUP_IMAGES if pack else LISTED_ROWS):
            rows = range(start, stop)
            columns = {
                "id": ids.slice(start, stop - start),
                "path": [images.path(row) for row in rows],
                "sha256": [bytes(value).hex() for value in described["sha256"][start:stop]],
                "width": described["width"][start:stop],
                "height": described["height"][start:stop],
            }
            if pack:
                columns["bytes"] = [images.read(row) for row in rows]
            writer.write_table(pa.table(columns, schema=schema))


@dataclass(frozen=True)
class Photographs:
    """Photographs of a split in order, unchanged since the folder was prepared."""

    images: EncodedImages
    sha256: Sequence[str]

    def read(self, row: int) -> bytes:
        try:
            content = self.images.read(row)
            if hashlib.sha256(content).hexdigest() != self.sha256[row]:
                raise ValueError("was changed since the folder was prepared")
        except (OSError, ValueError) as error:
            raise self._refusal(row, error) from None
        return content

    def decode(self, row: int, least: int = 0) -> Image:
        """Read and decode the photograph, down to `least` pixels a side (`aoq.pipeline.data.images.decode`)."""
        content = self.read(row)
        try:
            return decode(content, least).image
        except ValueError as error:
            raise self._refusal(row, error) from None

    def _refusal(self, row: int, reason: Exception) -> ValueError:
        return ValueError(f"{self.images.describe(row)}: {reason}; prepare the folder again.")


def photographs_fingerprint(folder: Path, split: str) -> str:
    """Fingerprint the contents of a split's photographs in order, wherever they lie."""
    return digest(_read_list(folder, split)[1])


def open_photographs(folder: Path, split: str, images: int) -> Photographs:
    """Open the photographs of a split, one for each of its images."""
    path = folder / f"{split}_images.parquet"
    paths, sha256, is_packed = _read_list(folder, split)
    if len(paths) != images:
        raise ValueError(f"{path} lists {len(paths)} photographs, but the split has {images} images; prepare it again.")
    if is_packed:
        return Photographs(ParquetImages([str(path)], "bytes", ""), sha256)
    files = [name for name in paths if name is not None]
    if len(files) < len(paths):
        raise ValueError(f"{path} names no file of image {paths.index(None)}; prepare it again with --pack.")
    return Photographs(ImageFiles(files), sha256)


def _read_list(folder: Path, split: str) -> tuple[list[str | None], list[str], bool]:
    """Read file and content hash of each photograph, and whether they are packed."""
    path = folder / f"{split}_images.parquet"
    if not path.is_file():
        raise ValueError(
            f"{folder} has no {path.name}, which says where its photographs are; `aoq prepare SOURCE FOLDER --pack` "
            "makes such a folder."
        )
    columns = pa.schema([PHOTOGRAPHS.field(name) for name in ("path", "sha256")])
    with open_parquet(path, columns, nullable=["path"], remedy="prepare the folder again") as (file, read):
        return *next(read()).to_pydict().values(), "bytes" in file.schema_arrow.names


def photograph_files(folder: Path, split: str, images: int, unpacked: Path | None = None) -> Sequence[str] | None:
    """Return the file of each photograph, if the prepared folder names them.

    With `unpacked`, a new folder, packed ones are written there and others checked; without it, no file is read.
    """
    if not (folder / f"{split}_images.parquet").is_file():
        return None
    photographs = open_photographs(folder, split, images)
    if isinstance(photographs.images, ImageFiles):
        if unpacked is not None:
            with ThreadPoolExecutor() as pool:
                deque(pool.map(photographs.read, range(images)), maxlen=0)
        return photographs.images.files
    if unpacked is None:
        return None
    unpacked.mkdir()
    pillow, paths = import_extra("PIL.Image", "prepare", "reading images"), []
    for row in range(images):
        content = photographs.read(row)
        with pillow.open(io.BytesIO(content), formats=DECODED_FORMATS) as opened:
            paths.append(unpacked / f"{row}.{opened.format.lower()}")
        paths[-1].write_bytes(content)
    return [*map(str, paths)]
