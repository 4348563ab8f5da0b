"""Anybody's vectors, from .npy, safetensors or Parquet files, as a memory-mapped float32 array."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from jaxtyping import Float32, Shaped
from safetensors import safe_open

from aoq.pipeline.columns import open_parquet
from aoq.pipeline.reading import open_array, reading
from aoq.pipeline.search.problem import BLOCK, blocks

UNIT = 1e-3
"""How far from 1 the norm of a unit vector may be."""


def open_vectors(given: str, copy: Path, *, normalise: bool) -> Float32[np.ndarray, "items D"]:
    """The matrix in FILE, or in `FILE::NAME` where it is one tensor or column of several.

    What is not float32 in a .npy file, or is to be normalised, is written to `copy` first, block by block.
    """
    path, part = vectors_file(given), given.partition("::")[2]
    count, dimensions, parts = READERS[path.suffix](path, part)
    if not count or not dimensions:
        raise ValueError(f"{given} is empty: {count} vectors of {dimensions} dimensions.")
    if path.suffix == ".npy" and not normalise:
        mapped = open_array(path, "c")
        if mapped.dtype == np.float32 and mapped.flags.c_contiguous:
            return mapped
    _write(copy, given, count, dimensions, parts, normalise)
    return open_array(copy, "c")


def vectors_file(given: str) -> Path:
    """The FILE of `FILE::NAME`."""
    path = Path(given.partition("::")[0])
    if path.suffix not in READERS:
        raise ValueError(f"{path} is none of {', '.join(READERS)}; save the vectors as one of these.")
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist.")
    return path


def check_vectors(vectors: Float32[np.ndarray, "items D"], given: str, *, unit: bool) -> None:
    """Refuse vectors that are zero or not finite, and where a cosine is wanted those that are not of norm 1."""
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


Blocks = Iterator[Shaped[np.ndarray, "rows D"]]


def _npy(path: Path, part: str) -> tuple[int, int, Blocks]:
    if part:
        raise ValueError(f"{path} holds one array without a name; leave out ::{part}.")
    array = open_array(path)
    _require_matrix(path, array.shape, np.issubdtype(array.dtype, np.floating), str(array.dtype))
    return *array.shape, (array[start:stop] for start, stop in blocks(len(array), BLOCK))


def _safetensors(path: Path, part: str) -> tuple[int, int, Blocks]:
    with reading(path, "a safetensors file"):
        file = safe_open(path, framework="np")
        kinds = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118  (no mapping)
    tensor = kinds[_choose(path, part, list(kinds), "tensors")]
    shape, dtype = tensor.get_shape(), tensor.get_dtype()
    _require_matrix(path, shape, dtype in ("F16", "F32", "F64"), dtype)
    return *shape, (tensor[start:stop] for start, stop in blocks(shape[0], BLOCK))


def _parquet(path: Path, part: str) -> tuple[int, int, Blocks]:
    with open_parquet(path) as file:
        schema, count = file.file.schema_arrow, len(file)
    lists = [field for field in schema if hasattr(field.type, "value_type")]
    names = [field.name for field in lists if pa.types.is_floating(field.type.value_type)]
    name = _choose(path, part, names, "columns")

    def matrices() -> Blocks:
        with open_parquet(path) as file:
            for batch in file.batches(BLOCK, [name]):
                yield _matrix(path, name, batch.column(0).combine_chunks())

    first = next(matrices(), np.empty((0, 0)))
    return count, first.shape[1], matrices()


def _matrix(path: Path, name: str, column: Any) -> Shaped[np.ndarray, "rows D"]:
    lengths = column.value_lengths()
    dimensions = lengths[0].as_py()
    if column.null_count or column.flatten().null_count or len(lengths.unique()) > 1:
        raise ValueError(f"{path}: the lists of column {name!r} are not all of {dimensions} numbers.")
    return column.flatten().to_numpy(zero_copy_only=False).reshape(len(column), dimensions)


def _choose(path: Path, part: str, names: list[str], kind: str) -> str:
    if part and part not in names:
        raise ValueError(f"{path} has no {part!r} among its {kind} of vectors; they are {names}.")
    if not part and len(names) != 1:
        raise ValueError(f"{path} has {len(names)} {kind} of vectors, {names}; name one: {path}::NAME.")
    return part or names[0]


def _require_matrix(path: Path, shape: Any, is_floating: bool, dtype: str) -> None:
    if len(shape) != 2 or not is_floating:
        raise ValueError(f"{path} holds {dtype} of shape {tuple(shape)}; a row of floats for each item is needed.")


READERS = {".npy": _npy, ".safetensors": _safetensors, ".parquet": _parquet}


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
