"""Vectors as float32: checked, normalised for cosines and mapped from a file, in one pass."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Float32, Float64

from aoq.pipeline.search.problem import blocks
from aoq.pipeline.vector_files import Given, Matrix

TOGETHER = 256
"""Rows per computation: their float64 copy fits into a cache."""


class Vectors(NamedTuple):
    """Vectors of one side, and upper bounds of their norms."""

    rows: Float32[np.ndarray, "items D"]
    norms: Float64[np.ndarray, " items"]


def open_vectors(given: str, copy: Path, *, normalise: bool) -> Vectors:
    """Open the matrix in FILE, or in `FILE::NAME` if it is one tensor or column of several (`vector_files`)."""
    return read_vectors(Given.of(given).open(), given, copy, normalise=normalise)


def read_vectors(matrix: Matrix, given: str, copy: Path, *, normalise: bool) -> Vectors:
    """Read an open matrix once. Threads may do this, but open files one at a time: 3.11 parses headers unsafely.

    Vectors to normalise, and anything but float32 in a .npy file, are written to `copy`, block by block.
    """
    shape, start, norms = (matrix.rows, matrix.dimensions), 0, np.empty(matrix.rows)
    if not all(shape):
        raise ValueError(f"{given} is empty: {shape[0]} vectors of {shape[1]} dimensions.")
    if matrix.whole is not None and not normalise and is_plain(matrix.whole):
        return in_float32(matrix.whole, given, normalise=False)
    temporary = copy.with_name(f".{copy.name}.tmp")
    with temporary.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
        offset = file.tell()
        for block in matrix.blocks:
            if block.shape[1] != shape[1]:
                raise ValueError(
                    f"{given}: vectors have {shape[1]} dimensions, and from row {start} on {block.shape[1]}; all need "
                    "the same."
                )
            stop = start + len(block)
            rows, norms[start:stop] = in_float32(block, given, first=start, normalise=normalise)
            file.write(rows.astype("<f4", copy=False).data)
            start = stop
    os.replace(temporary, copy)
    return Vectors(np.memmap(copy, "<f4", "c", offset, shape), norms)


def in_float32(
    vectors: Float[np.ndarray, "items D"], given: str, *, first: int = 0, normalise: bool, zeros: bool = False
) -> Vectors:
    """Convert to float32; vectors to `normalise` are divided by their norms in float64, and rounded once."""
    if not normalise:
        rows = vectors if is_plain(vectors) else np.ascontiguousarray(vectors, dtype=np.float32)
        return Vectors(rows, norms_of(rows, given, first=first, zeros=zeros) * (1 + 2.0**-40))
    rows, norms = np.empty(vectors.shape, np.float32), norms_of(vectors, given, first=first)
    for start, stop in blocks(len(rows), TOGETHER):
        rows[start:stop] = vectors[start:stop].astype(np.float64) / norms[start:stop, None]
    return Vectors(rows, np.full(len(rows), 1 + 2.0**-23))


def is_plain(vectors: np.ndarray) -> bool:
    return vectors.dtype == np.float32 and vectors.flags.c_contiguous


def norms_of(
    vectors: Float[np.ndarray, "items D"], given: str, *, first: int = 0, zeros: bool = False
) -> Float64[np.ndarray, " items"]:
    """Compute the norms in float64; refuse vectors that are not finite, and zero ones unless `zeros` are allowed."""
    norms = np.empty(len(vectors))
    for start, stop in blocks(len(vectors), TOGETHER):
        norms[start:stop] = np.linalg.norm(vectors[start:stop].astype(np.float64), axis=1)
    for wrong, what in ((~np.isfinite(norms), "is not finite"), ((norms == 0) & (not zeros), "is zero")):
        if wrong.any():
            raise ValueError(
                f"the vector in row {first + int(wrong.argmax())} of {given} {what}; repair it or leave it out."
            )
    return norms
