"""Encoded images of a source, by reference: files, members of tar archives, cells of Parquet files or of data sets."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from jaxtyping import Int

from aoq.pipeline.data.images import MOST_BYTES
from aoq.pipeline.files import digest
from aoq.pipeline.reading import read_file, reading


class EncodedImages(ABC):
    """Encoded images, row by row; pickled for worker processes."""

    files: Sequence[str]
    """Files that hold them."""

    @abstractmethod
    def read(self, row: int) -> bytes:
        """Read the bytes of an image; OSError or ValueError if there are none."""

    @abstractmethod
    def describe(self, row: int) -> str:
        """Describe the image's place for a message."""

    def path(self, row: int) -> str | None:
        """Return the path of the image's own file; None if it is part of another file."""
        return None

    def sha256(self, row: int) -> bytes | None:
        """Hash the bytes of an image; None if they cannot be read."""
        with suppress(OSError, ValueError):
            return sha256(self.read(row)).digest()
        return None

    def take(self, rows: Int[np.ndarray, " some"]) -> EncodedImages:
        """Select these rows, in this order, in a form that is small to send."""
        return Selection(self, rows)

    def identity(self) -> str:
        """Identify the images by their files' names, sizes and times; by the name alone of a missing file."""
        total = sha256()
        for path in self.files:
            total.update(path.encode(errors="surrogateescape") + b"\0")
            with suppress(OSError, ValueError):
                about = os.stat(path)
                total.update(f"{about.st_size} {about.st_mtime_ns}\0".encode())
        return total.hexdigest()


@dataclass(frozen=True)
class Selection(EncodedImages):
    whole: EncodedImages
    rows: Int[np.ndarray, " some"]

    @property
    def files(self) -> Sequence[str]:  # type: ignore[override]
        return self.whole.files

    def read(self, row: int) -> bytes:
        return self.whole.read(int(self.rows[row]))

    def describe(self, row: int) -> str:
        return self.whole.describe(int(self.rows[row]))

    def take(self, rows: Int[np.ndarray, " some"]) -> EncodedImages:
        return self.whole.take(self.rows[rows])

    def identity(self) -> str:
        return digest([self.whole.identity(), sha256(self.rows.tobytes()).hexdigest()])


@dataclass(frozen=True)
class ImageFiles(EncodedImages):
    files: Sequence[str]

    def read(self, row: int) -> bytes:
        return read_file(self.files[row], MOST_BYTES)

    def describe(self, row: int) -> str:
        return self.files[row]

    def path(self, row: int) -> str | None:
        return self.files[row]

    def take(self, rows: Int[np.ndarray, " some"]) -> ImageFiles:
        return ImageFiles([self.files[row] for row in rows])


@dataclass(frozen=True)
class TarMembers(EncodedImages):
    files: Sequence[str]
    members: Sequence[tuple[int, int, int, str]]
    """Number of the archive, first byte and size of each image, and its name there."""

    def read(self, row: int) -> bytes:
        archive, start, size, _ = self.members[row]
        return read_file(self.files[archive], MOST_BYTES, start=start, size=size)

    def describe(self, row: int) -> str:
        return f"{self.files[self.members[row][0]]}:{self.members[row][3]}"

    def take(self, rows: Int[np.ndarray, " some"]) -> TarMembers:
        return TarMembers(self.files, [self.members[row] for row in rows])


@dataclass(frozen=True)
class ParquetImages(EncodedImages):
    """Images in a column of Parquet files, as bytes or as {bytes, path}; one row group is read at a time."""

    files: Sequence[str]
    column: str
    root: str
    """Where paths in cells without bytes start."""

    def __getstate__(self) -> dict[str, Any]:
        return {"files": self.files, "column": self.column, "root": self.root}  # without the cached row group

    @cached_property
    def _groups(self) -> list[tuple[int, str, int, pq.FileMetaData]]:
        """First row, file, number and file's metadata of each row group; read once, as metadata may be large."""
        groups, start = [], 0
        for name in self.files:
            about = pq.read_metadata(name)
            for group in range(about.num_row_groups):
                groups.append((start, name, group, about))
                start += about.row_group(group).num_rows
        return groups

    def _find_group(self, row: int) -> tuple[int, str, int, pq.FileMetaData]:
        return self._groups[bisect_right(self._groups, row, key=lambda group: group[0]) - 1]

    def read(self, row: int) -> bytes:
        start, name, group, about = self._find_group(row)
        cached = vars(self).get("_cached")
        if cached is None or cached[0] != start:
            with reading(Path(name), "a Parquet file of images"):
                opened = pq.ParquetFile(name, metadata=about, page_checksum_verification=True)
                cached = start, opened.read_row_group(group, [self.column])[self.column]
            vars(self)["_cached"] = cached
        return image_bytes(cached[1][row - start].as_py(), self.root)

    def describe(self, row: int) -> str:
        return f"{self._find_group(row)[1]}: image {row}"


@dataclass(frozen=True)
class DatasetImages(EncodedImages):
    """Images of a column of a Hugging Face data set, undecoded."""

    dataset: Any
    column: str
    root: str
    files: Sequence[str] = ()

    def read(self, row: int) -> bytes:
        return image_bytes(self.dataset[row][self.column], self.root)

    def describe(self, row: int) -> str:
        return f"image {row}"

    def identity(self) -> str:
        return str(self.dataset._fingerprint)


def image_bytes(value: Any, root: str) -> bytes:
    """Return the encoded image in a cell: bytes, or {bytes, path} with a path from `root`."""
    if isinstance(value, dict):
        if value.get("bytes") is None and value.get("path"):
            return read_file(Path(root, value["path"]), MOST_BYTES)
        value = value.get("bytes")
    if not isinstance(value, bytes):
        raise ValueError("holds no image")
    return value
