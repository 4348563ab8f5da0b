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

WHITE = r"[\s\x{0b}\x{1c}-\x{1f}\x{85}\x{2028}\x{2029}]+"
"""White space and anything that ends a line somewhere: the captions file has one per line."""


TEXTS = 1 << 16


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
        """Path of the image's own file; None if it is part of another file."""
        return None

    def part(self, rows: Int[np.ndarray, " some"]) -> Images:
        """Select these alone, in this order, in a form that is small to send."""
        return Part(self, rows)

    def identity(self) -> str:
        """Identify the images by names, sizes and times of files, not by their content."""
        return stamp_of(self.files)


@dataclass(frozen=True)
class Part(Images):
    """Some rows of other images."""

    whole: Images
    rows: Int[np.ndarray, " some"]

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
    def part(self, rows: Int[np.ndarray, " some"]) -> Files:
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
    def part(self, rows: Int[np.ndarray, " some"]) -> FileParts:
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
        groups, starts = [], [0]
        for name, about in self._metadata.items():
            for group in range(about.num_row_groups):
                groups.append((name, group))
                starts.append(starts[-1] + about.row_group(group).num_rows)
        return groups, np.array(starts)

    def read(self, row: int) -> bytes:
        groups, starts = self._groups
        group = int(np.searchsorted(starts, row, side="right")) - 1
        kept = vars(self).get("_kept")
        if kept is None or kept[0] != group:
            name, place = groups[group]
            with reading(Path(name), "a Parquet file of images"):
                opened = pq.ParquetFile(name, metadata=self._metadata[name], page_checksum_verification=True)
                kept = group, opened.read_row_group(place, [self.column])[self.column]
            vars(self)["_kept"] = kept
        return bytes_of(kept[1][row - int(starts[group])].as_py())

    @override
    def part(self, rows: Int[np.ndarray, " some"]) -> Part:
        return Part(ParquetImages(self.files, self.column), rows)  # without the cached row group

    def describe(self, row: int) -> str:
        group = int(np.searchsorted(self._groups[1], row, side="right")) - 1
        return f"{self._groups[0][group][0]}: image {row}"


def stamp_of(paths: Sequence[str]) -> str:
    """Names of files, with their sizes and times; the name alone of a missing one."""
    found = sha256()
    for path in paths:
        found.update(path.encode(errors="surrogateescape") + b"\0")
        with suppress(OSError, ValueError):
            about = os.stat(path)
            found.update(f"{about.st_size} {about.st_mtime_ns}\0".encode())
    return found.hexdigest()


def bytes_of(value: Any) -> bytes:
    """Get the encoded image from a cell: bytes, or {bytes, path}."""
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
        found = sha256()
        for texts in (self.ids, self.captions.flatten(), self.splits):
            for part in [] if texts is None else [texts.slice(at, TEXTS) for at in range(0, len(texts), TEXTS)]:
                found.update(json.dumps(part.to_pylist()).encode())
        found.update(pc.list_value_length(self.captions).fill_null(0).to_numpy().astype(np.int64).tobytes())
        return found.hexdigest()

    def take(self, places: Int[np.ndarray, " some"]) -> Listing:
        """Select some images, in the order of their places."""
        return replace(
            self,
            rows=self.rows[places],
            ids=self.ids.take(pa.array(places)),
            captions=self.captions.take(pa.array(places)),
            splits=None if self.splits is None else self.splits.take(pa.array(places)),
        )


def clean_captions(captions: pa.Array) -> tuple[pa.Array, int]:
    """Replace white space in captions by single spaces, drop empty ones, and count these."""
    texts = captions.flatten()
    owners = pc.list_parent_indices(captions)
    texts = pc.utf8_trim_whitespace(pc.replace_substring_regex(texts.cast(pa.string()), WHITE, " "))
    there = pc.fill_null(pc.greater(pc.utf8_length(texts), 0), False)
    counts = np.bincount(owners.filter(there).to_numpy(), minlength=len(captions))
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), texts.filter(there)), len(texts) - int(offsets[-1])


def find_files(paths: Sequence[str], roots: Sequence[Path]) -> list[str]:
    """Resolve paths below the first root that has the first of them; below the first root if none has."""
    if not paths:
        return []
    root = next((root for root in roots if (root / paths[0]).exists()), roots[0])
    return [os.path.normpath(root / path) for path in paths]
