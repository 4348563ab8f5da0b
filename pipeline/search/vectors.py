"""User-supplied vectors as a memory-mapped float32 array."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import numpy as np
from jaxtyping import Float32

from aoq.pipeline.reading import open_array
from aoq.pipeline.search.problem import BLOCK, blocks
from aoq.pipeline.search.vector_files import Blocks, Given

logger = logging.getLogger(__name__)

UNIT = 1e-3
"""Largest deviation of a unit vector's norm from 1."""


def open_vectors(given: str, copy: Path, *, normalise: bool) -> Float32[np.ndarray, "items D"]:
    """Open the matrix in FILE, or in `FILE::NAME` if it is one tensor or column of several (`vector_files`).

    Anything but float32 in a .npy file, and vectors to be normalised, are written to `copy` first, block by block.
    """
    found = Given.of(given)
    count, dimensions, parts = found.open()
    if not count or not dimensions:
        raise ValueError(f"{given} is empty: {count} vectors of {dimensions} dimensions.")
    if found.path.suffix == ".npy" and not normalise:
        mapped = open_array(found.path, "c")
        if mapped.dtype == np.float32 and mapped.flags.c_contiguous:
            return mapped
    _write(copy, given, count, dimensions, parts, normalise)
    return open_array(copy, "c")


def open_cosine_vectors(given: str, copy: Path) -> tuple[Float32[np.ndarray, "items D"], bool]:
    """The matrix, divided by the norms unless all are of norm 1 already; and whether it was divided."""
    found = open_vectors(given, copy, normalise=False)
    if _are_unit(found):
        return found, False
    logger.info("%s: not all vectors are of norm 1; they are divided by their norms", given)
    return open_vectors(given, copy, normalise=True), True


def _are_unit(vectors: Float32[np.ndarray, "items D"]) -> bool:
    """True if all are of norm 1, or one is not finite, which `check_vectors` names."""
    for start, stop in blocks(len(vectors), BLOCK):
        norms = np.linalg.norm(vectors[start:stop].astype(np.float64), axis=1)
        if not np.isfinite(norms).all():
            return True
        if (np.abs(norms - 1) > UNIT).any():
            return False
    return True


def check_vectors(vectors: Float32[np.ndarray, "items D"], given: str, *, unit: bool) -> None:
    """Refuse vectors that are zero or not finite, and for a cosine those that are not of norm 1."""
    for start, stop in blocks(len(vectors), BLOCK):
        norms = np.linalg.norm(vectors[start:stop].astype(np.float64), axis=1)
        for wrong, what in ((~np.isfinite(norms), "is not finite"), (norms == 0, "is zero")):
            if wrong.any():
                raise ValueError(
                    f"{given}: the vector in row {start + int(wrong.argmax())} {what}; repair it or leave it out."
                )
        if unit and (far := np.abs(norms - 1) > UNIT).any():
            row = int(far.argmax())
            raise ValueError(
                f"{given}: the vector in row {start + row} has norm {norms[row]:.4g}, and a cosine needs norm 1; "
                "give --normalise to divide by the norms, or --metric dot to mine dot products as they are."
            )


def _write(copy: Path, given: str, count: int, dimensions: int, parts: Blocks, normalise: bool) -> None:
    temporary = copy.with_name(f".{copy.name}.tmp")
    with temporary.open("wb") as file:
        header = {"descr": "<f4", "fortran_order": False, "shape": (count, dimensions)}
        np.lib.format.write_array_header_1_0(file, header)
        start = 0
        for part in parts:
            if part.shape[1] != dimensions:
                raise ValueError(
                    f"{given}: vectors have {dimensions} dimensions, and from row {start} on {part.shape[1]}; all need "
                    "the same."
                )
            block = part.astype(np.float64) if normalise else part
            if normalise:
                norms = np.linalg.norm(block, axis=1, keepdims=True)
                if not norms.all():
                    row = start + int((norms == 0).argmax())
                    raise ValueError(f"{given}: the vector in row {row} is zero and has no direction; leave it out.")
                block = block / norms
            file.write(block.astype("<f4").tobytes())
            start += len(part)
    os.replace(temporary, copy)
