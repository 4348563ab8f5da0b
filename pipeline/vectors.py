"""Vectors that users name, as float32: read once, checked and mapped; fetched first if they are at an address."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from jaxtyping import Float, Float32, Float64
from pyarrow import fs

from aoq.pipeline.files import digest, file_sha256, known_sha256, scratch_beside, writing_in
from aoq.pipeline.search.problem import blocks
from aoq.pipeline.vector_files import FilePart, VectorFile

OF_ARROW = ("s3", "gs", "gcs", "abfs", "abfss", "hdfs", "viewfs", "file")
"""Schemes that pyarrow reads without further packages; fsspec reads others, such as https."""
_CACHED = 256
"""Rows per computation: their float64 copy fits into a cache."""


class Vectors(NamedTuple):
    """Vectors of one side, and upper bounds of their norms."""

    rows: Float32[np.ndarray, "items D"]
    norms: Float64[np.ndarray, " items"]


def open_vectors(source: str, copy: Path, *, normalise: bool) -> Vectors:
    """Open the matrix in FILE, or in `FILE::NAME` if it is one tensor or column of several."""
    return read_vectors(VectorFile.of(source).open(), source, copy, normalise=normalise)


def open_sides(
    images: str | None, captions: str | None, scratch: Path, *, normalise: bool | Sequence[str] = False
) -> dict[str, Float32[np.ndarray, "_ D"]]:
    """Open the vectors of one side or both: all finite, with the same dimension.

    `normalise` divides them by their norms; it may name the sides to divide.
    """
    opened = {}
    for side, file in (("images", images), ("captions", captions)):
        if file is not None:
            by_norms = normalise if isinstance(normalise, bool) else side in normalise
            opened[side] = open_vectors(file, scratch / f"{side}.npy", normalise=by_norms).rows
    sizes = [vectors.shape[1] for vectors in opened.values()]
    if len({*sizes}) > 1:
        raise ValueError(f"images have {sizes[0]} dimensions and captions {sizes[1]}; both must come from one model.")
    return opened


def read_vectors(matrix: FilePart, source: str, copy: Path, *, normalise: bool) -> Vectors:
    """Read an open matrix once. Threads may do so, but open files one at a time: Python 3.11 parses headers unsafely.

    Vectors to normalise, and anything but float32 in a .npy file, are written to `copy`, block by block.
    """
    (count, dimensions), start, norms = matrix.shape, 0, np.empty(matrix.shape[0])
    if not count or not dimensions:
        raise ValueError(f"{source} is empty: {count} vectors of {dimensions} dimensions.")
    if matrix.whole is not None and not normalise and _is_plain(matrix.whole):
        return in_float32(matrix.whole, source, normalise=False)
    temporary = copy.with_name(f".{copy.name}.tmp")
    with temporary.open("wb") as file:
        header = {"descr": "<f4", "fortran_order": False, "shape": (count, dimensions)}
        np.lib.format.write_array_header_1_0(file, header)
        offset = file.tell()
        for block in matrix.blocks():
            if block.shape[1] != dimensions:
                raise ValueError(
                    f"{source}: vectors have {dimensions} dimensions, and from row {start} on {block.shape[1]}; all "
                    "need the same."
                )
            stop = start + len(block)
            rows, norms[start:stop] = in_float32(block, source, first=start, normalise=normalise)
            file.write(rows.astype("<f4", copy=False).data)
            start = stop
    os.replace(temporary, copy)
    return Vectors(np.memmap(copy, "<f4", "c", offset, (count, dimensions)), norms)


def in_float32(vectors: Float[np.ndarray, "items D"], source: str, *, first: int = 0, normalise: bool) -> Vectors:
    """Convert to float32; vectors to `normalise` are divided by their norms in float64, and rounded once."""
    if not normalise:
        with np.errstate(over="ignore"):  # refused below
            rows = vectors if _is_plain(vectors) else np.ascontiguousarray(vectors, dtype=np.float32)
        norms = checked_norms(rows, source, first=first, zeros=True, unrounded=vectors)
        return Vectors(rows, norms * (1 + 2.0**-40))
    rows, norms = np.empty(vectors.shape, np.float32), checked_norms(vectors, source, first=first)
    for start, stop in blocks(len(rows), _CACHED):
        rows[start:stop] = vectors[start:stop].astype(np.float64) / norms[start:stop, None]
    return Vectors(rows, np.full(len(rows), 1 + 2.0**-23))


def _is_plain(vectors: np.ndarray) -> bool:
    return vectors.dtype == np.float32 and vectors.flags.c_contiguous


def checked_norms(
    vectors: Float[np.ndarray, "items D"],
    source: str,
    *,
    first: int = 0,
    zeros: bool = False,
    unrounded: Float[np.ndarray, "items D"] | None = None,
) -> Float64[np.ndarray, " items"]:
    """Compute the norms in float64; refuse vectors that are not finite, and zero ones unless `zeros` are allowed.

    A finite vector that is not finite as float32 is refused as too large.
    """
    norms = np.empty(len(vectors))
    for start, stop in blocks(len(vectors), _CACHED):
        norms[start:stop] = np.linalg.norm(vectors[start:stop].astype(np.float64), axis=1)
    for wrong, what in ((~np.isfinite(norms), "is not finite"), ((norms == 0) & (not zeros), "is zero")):
        if wrong.any():
            row, remedy = int(wrong.argmax()), "repair it or leave it out"
            if not np.isfinite(norms[row]) and np.isfinite((vectors if unrounded is None else unrounded)[row]).all():
                what, remedy = "is too large for float32, which ends at 3.4e38", "divide all vectors by one number"
            raise ValueError(f"the vector in row {first + row} of {source} {what}; {remedy}.")
    return norms


def is_address(source: str) -> bool:
    return "://" in source


def fetch(address: str, cache: Path) -> Path:
    """Copy the file at `address` into `cache`, named after its content; copy it again if it changes. Return the copy.

    Credentials are those that pyarrow's and fsspec's file systems look for.
    """
    system, place, info = _find_file(address)
    with writing_in(cache):
        cache.mkdir(parents=True, exist_ok=True)
    seen = cache / f"{digest([address, info.size, info.mtime_ns])}.seen"
    with scratch_beside(seen, wait=True) as folder:
        with suppress(OSError, ValueError):  # no file, or not a file's name
            copy = seen.with_name(seen.read_text())
            if info.mtime_ns is not None and known_sha256(copy) == copy.stem:  # else it may have changed
                return copy
        fetched = folder / "fetched"
        fs.copy_files(place, str(fetched), system, fs.LocalFileSystem())
        copy = cache / f"{file_sha256(fetched)}{PurePosixPath(place).suffix}"
        os.replace(fetched, copy)
        (folder / "seen").write_text(copy.name)
        os.replace(folder / "seen", seen)
    return copy


def fetch_source(source: str, cache: Path) -> str:
    """Replace `ADDRESS::NAME` by the copy's `FILE::NAME`; return other sources unchanged."""
    address, mark, part = source.partition("::")
    return f"{fetch(address, cache)}{mark}{part}" if is_address(address) else source


def _find_file(address: str) -> tuple[fs.FileSystem, str, fs.FileInfo]:
    try:
        if address.partition("://")[0] in OF_ARROW:
            system, place = fs.FileSystem.from_uri(address)
        else:
            import fsspec  # late: importing it is slow, and few need it

            handler, place = fsspec.url_to_fs(address)
            system = fs.PyFileSystem(fs.FSSpecHandler(handler))
    except (pa.ArrowInvalid, ValueError, ImportError) as error:
        raise ValueError(
            f"{address} is not an address that can be read ({error}); known are s3://, gs://, abfs://, hdfs://, "
            "file:/// and the schemes of installed fsspec packages."
        ) from None
    if (info := system.get_file_info(place)).type != fs.FileType.File:
        raise FileNotFoundError(f"there is no file at {address}; check the address, and that you may read it.")
    return system, place, info
