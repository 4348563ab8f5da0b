"""Rows of a .npy matrix read by range, from an object store or a file; every piece is checked as it is read."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from typing import Any

import numpy as np
from jaxtyping import Float32

from aoq.pipeline.search.problem import blocks
from aoq.pipeline.search.remote import open_ranges

PIECE = 512
"""Rows that are hashed together."""


def piece_hashes(vectors: Float32[np.ndarray, "items D"]) -> bytes:
    """Hash every `PIECE` rows; 32 bytes each, one after another."""
    return b"".join(_sha256(vectors[start:stop]) for start, stop in blocks(len(vectors), PIECE))


class RangedVectors:
    """A matrix at an address; `vectors[start:stop]` reads these rows and nothing else, and refuses changed ones.

    `hashes` are the `piece_hashes` of the matrix that is meant, and `offset` is the place of its first row.
    """

    dtype = np.dtype("<f4")

    def __init__(self, address: str, offset: int, shape: tuple[int, int], hashes: bytes) -> None:
        self.address, self.shape = address, shape
        self._offset, self._hashes = offset, hashes
        self._file: Any = None

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> Float32[np.ndarray, "rows D"]:
        start, stop, step = rows.indices(len(self))
        assert step == 1
        first, last = start // PIECE * PIECE, min(len(self), -(-stop // PIECE) * PIECE)
        read = self._read(first, max(first, last))
        for piece, content in blocks(len(read), PIECE):
            at = (first + piece) // PIECE * 32
            if _sha256(read[piece:content]) != self._hashes[at : at + 32]:
                raise ValueError(
                    f"{self.address} is another file than the one that is mined, from row {first + piece} on; leave it "
                    "as it is until the run ends, and run again."
                )
        return read[start - first : stop - first]

    def _read(self, start: int, stop: int) -> Float32[np.ndarray, "rows D"]:
        if self._file is None:
            self._file = open_ranges(self.address)
        row = 4 * self.shape[1]
        content = self._file.read_at((stop - start) * row, self._offset + start * row)
        if len(content) != (stop - start) * row:
            raise ValueError(f"{self.address} was cut short; put the file back, and run again.")
        return np.frombuffer(bytearray(content), self.dtype).reshape(-1, self.shape[1])


def stream(vectors: Any, size: int) -> Iterator[tuple[int, Float32[np.ndarray, "rows D"]]]:
    """Read all rows in order, `size` at a time, each block with its first row; the next is read meanwhile."""
    ranges = blocks(len(vectors), size)
    with ThreadPoolExecutor(1) as reader:
        coming = [reader.submit(read_rows, vectors, *rows) for rows in ranges[:1]]
        for number, (start, _) in enumerate(ranges):
            block = coming.pop().result()
            coming += [reader.submit(read_rows, vectors, *rows) for rows in ranges[number + 1 : number + 2]]
            yield start, block


def read_rows(vectors: Any, start: int, stop: int) -> Float32[np.ndarray, "rows D"]:
    """Read rows into memory, writeable."""
    rows = vectors[start:stop]
    return np.array(rows, dtype=np.float32, order="C") if isinstance(vectors, np.ndarray) else rows


def _sha256(rows: Float32[np.ndarray, "rows D"]) -> bytes:
    return sha256(np.ascontiguousarray(rows, dtype="<f4").data).digest()
