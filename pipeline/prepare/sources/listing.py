"""Content of a source: images by reference, their captions, ids and splits. Nothing is decoded yet."""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from jaxtyping import Int
from typing_extensions import override

from aoq.pipeline.reading import reading

HASHED = 1 << 16
"""Texts that are hashed at a time."""
Rows = Int[np.ndarray, " some"]


class Images(ABC):
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

    def part(self, rows: Rows) -> Images:
        """Select these rows, in this order, in a form that is small to send."""
        return Part(self, rows)

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
class Part(Images):
    """Some rows of other images."""

    whole: Images
    rows: Rows

    @property
    def files(self) -> Sequence[str]:  # type: ignore[override]
        return self.whole.files

    def read(self, row: int) -> bytes:
        return self.whole.read(int(self.rows[row]))

    def path(self, row: int) -> str | None:
        return self.whole.path(int(self.rows[row]))

    def describe(self, row: int) -> str:
        return self.whole.describe(int(self.rows[row]))


@dataclass(frozen=True)
class Files(Images):
    """Images that are files."""

    files: Sequence[str]

    def read(self, row: int) -> bytes:
        return Path(self.files[row]).read_bytes()

    def path(self, row: int) -> str | None:
        return self.files[row]

    def describe(self, row: int) -> str:
        return self.files[row]

    @override
    def part(self, rows: Rows) -> Files:
        return Files([self.files[row] for row in rows])


@dataclass(frozen=True)
class FileParts(Images):
    """Images stored one after another in files such as tar archives, with their names there."""

    files: Sequence[str]
    file_of: Int[np.ndarray, " images"]
    starts: Int[np.ndarray, " images"]
    sizes: Int[np.ndarray, " images"]
    names: Sequence[str]

    def read(self, row: int) -> bytes:
        with open(self.files[self.file_of[row]], "rb") as file:
            file.seek(self.starts[row])
            return file.read(self.sizes[row])

    def describe(self, row: int) -> str:
        return f"{self.files[self.file_of[row]]}:{self.names[row]}"

    @override
    def part(self, rows: Rows) -> FileParts:
        held, file_of = np.unique(self.file_of[rows], return_inverse=True)
        files, names = [self.files[file] for file in held], [self.names[row] for row in rows]
        return FileParts(files, file_of, self.starts[rows], self.sizes[rows], names)


@dataclass(frozen=True)
class ParquetImages(Images):
    """Images in a column of Parquet files, as bytes or as {bytes, path}; one row group is read at a time."""

    files: Sequence[str]
    column: str

    @cached_property
    def _metadata(self) -> dict[str, pq.FileMetaData]:
        """Read once, as it is large for many row groups."""
        return {name: pq.read_metadata(name) for name in self.files}

    @cached_property
    def _groups(self) -> tuple[list[tuple[str, int]], np.ndarray]:
        """File and number of each row group, and the row where it starts."""
        metadata = self._metadata.items()
        groups = [(name, group) for name, about in metadata for group in range(about.num_row_groups)]
        sizes = [about.row_group(group).num_rows for _, about in metadata for group in range(about.num_row_groups)]
        return groups, np.cumsum([0, *sizes])

    def _locate(self, row: int) -> tuple[str, int, int]:
        """Return the file, its row group, and the row in that."""
        groups, starts = self._groups
        place = int(np.searchsorted(starts, row, side="right")) - 1
        return *groups[place], row - int(starts[place])

    def read(self, row: int) -> bytes:
        name, group, place = self._locate(row)
        cached = vars(self).get("_cached")
        if cached is None or cached[0] != (name, group):
            with reading(Path(name), "a Parquet file of images"):
                opened = pq.ParquetFile(name, metadata=self._metadata[name], page_checksum_verification=True)
                cached = (name, group), opened.read_row_group(group, [self.column])[self.column]
            vars(self)["_cached"] = cached
        return image_bytes(cached[1][place].as_py())

    @override
    def part(self, rows: Rows) -> Part:
        return Part(ParquetImages(self.files, self.column), rows)  # without the cached row group

    def describe(self, row: int) -> str:
        return f"{self._locate(row)[0]}: image {row}"


def image_bytes(value: Any) -> bytes:
    """Return the encoded image in a cell: bytes, or {bytes, path}."""
    if isinstance(value, dict):
        if value.get("bytes") is None and value.get("path"):
            return Path(value["path"]).read_bytes()
        value = value.get("bytes")
    if not isinstance(value, bytes):
        raise ValueError("holds no image")
    return value


@dataclass(frozen=True)
class Listing:
    """Images in the order of the dataset folder; `rows` are their rows in `images`."""

    kind: str
    """Kind of source that was recognised."""
    images: Images
    rows: Int[np.ndarray, " images"]
    ids: pa.Array
    captions: pa.Array
    """Lists of texts."""
    splits: pa.Array | None
    """A name per image; None if the source has none."""

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def texts_sha256(self) -> str:
        """Hash ids, captions and splits."""
        total = sha256()
        columns = [self.ids, self.captions.flatten(), *([] if self.splits is None else [self.splits])]
        for texts in columns:
            for start in range(0, len(texts), HASHED):
                total.update(json.dumps(texts.slice(start, HASHED).to_pylist()).encode())
        total.update(pc.list_value_length(self.captions).fill_null(0).to_numpy().astype(np.int64).tobytes())
        return total.hexdigest()

    def take(self, places: Rows) -> Listing:
        """Select some images, in the order of their places."""
        at = pa.array(places)
        splits = None if self.splits is None else self.splits.take(at)
        ids, captions = self.ids.take(at), self.captions.take(at)
        return replace(self, rows=self.rows[places], ids=ids, captions=captions, splits=splits)
