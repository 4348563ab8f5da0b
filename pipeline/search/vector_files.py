"""Matrices and ids from files: .npy, safetensors, Parquet, Arrow, and data sets, saved or of the hub."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from jaxtyping import Shaped
from safetensors import safe_open

from aoq.pipeline.digests import file_sha256
from aoq.pipeline.hub import is_of_hub
from aoq.pipeline.reading import open_array, reading
from aoq.pipeline.search.column_files import COLUMNED, SAVED, ArrowColumns, Columns, HubColumns, shards_of
from aoq.pipeline.search.problem import BLOCK, blocks

SPLITS = "dataset_dict.json"
"""The file that `save_to_disk` writes into the folder of several splits."""
Blocks = Iterator[Shaped[np.ndarray, "rows D"]]


class Given(NamedTuple):
    """FILE or FILE::NAME: NAME is the part of the file that holds the vectors or the ids."""

    path: Path
    """Name of a data set of the hub."""
    part: str

    @classmethod
    def of(cls, given: str) -> Given:
        """Parse FILE or FILE::NAME; refuse it unless there is such a file or data set."""
        name, _, part = given.partition("::")
        path = Path(name)
        if is_of_hub(name):
            HubColumns(name)
            return cls(path, part)
        if (path / SPLITS).is_file():
            splits = sorted(saved.parent.name for saved in path.glob(f"*/{SAVED}"))
            raise ValueError(f"{path} holds a data set's splits, {splits}; name one: {path}/SPLIT::COLUMN.")
        if not (path / SAVED).is_file():
            if path.suffix not in READERS or path.is_dir():
                known = ", ".join(READERS)
                raise ValueError(
                    f"{path} is none of {known} and no folder of save_to_disk; save the vectors as one of these."
                )
            if not path.is_file():
                raise FileNotFoundError(f"{path} does not exist.")
        return cls(path, part)

    @property
    def sha256(self) -> str:
        """Hash the file, of the hashes of a saved data set's files in order, or of the hub's vectors."""
        if is_of_hub(str(self.path)):
            return self._vectors_sha256()
        if self.path.is_dir():
            return sha256("".join(map(file_sha256, shards_of(self.path))).encode()).hexdigest()
        return file_sha256(self.path)

    def _vectors_sha256(self) -> str:
        """Hash the vectors alone, whatever else the data set holds and however its copy is divided."""
        count, dimensions, parts = self.open()
        found = sha256(f"{count} {dimensions}\0".encode())
        for part in parts:
            found.update(np.ascontiguousarray(part).data)
        return found.hexdigest()

    def open(self) -> tuple[int, int, Blocks]:
        """Number of vectors, number of dimensions, and the vectors in blocks."""
        if (columns := self._columns()) is not None:
            return _of_columns(self.path, self.part, columns)
        return MATRICES[self.path.suffix](self.path, self.part)

    def _columns(self) -> Columns | None:
        if is_of_hub(str(self.path)):
            return HubColumns(str(self.path))
        if self.path.is_dir():
            return ArrowColumns(shards_of(self.path))
        return COLUMNED[self.path.suffix](self.path) if self.path.suffix in COLUMNED else None

    def read_ids(self) -> list[str]:
        """Read the ids in the named column, texts or whole numbers."""
        if (table := self._columns()) is None:
            raise ValueError(f"{self.path} holds vectors alone; ids are a column of {', '.join(COLUMNED)}.")
        names = [field.name for field in table.schema if _holds_ids(field.type)]
        if self.part not in names:
            given = f"{self.path}::{self.part}" if self.part else str(self.path)
            raise ValueError(
                f"{given} names no column of ids; those of texts or whole numbers are {names}: {self.path}::NAME."
            )
        ids = [value for column in table.column(self.part) for value in column.to_pylist()]
        if None in ids:
            raise ValueError(f"{self.path}: row {ids.index(None)} has no id in column {self.part!r}; give it one.")
        return list(map(str, ids))


def _holds_ids(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _holds_vectors(kind: pa.DataType) -> bool:
    value = getattr(kind, "value_type", None)  # for a data set's two-dimensional arrays this is a name
    return isinstance(value, pa.DataType) and pa.types.is_floating(value)


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


def _of_columns(path: Path, part: str, table: Columns) -> tuple[int, int, Blocks]:
    names = [field.name for field in table.schema if _holds_vectors(field.type)]
    if part in table.schema.names and part not in names:
        kind = table.schema.field(part).type
        raise ValueError(f"{path}: column {part!r} is of {kind}, and lists of floats are needed; such are {names}.")
    name = _choose(path, part, names, "columns")

    def matrices() -> Blocks:
        return (_matrix(path, name, column) for column in table.column(name) if len(column))

    first = next(matrices(), np.empty((0, 0)))
    return table.count, first.shape[1], matrices()


def _matrix(path: Path, name: str, column: Any) -> Shaped[np.ndarray, "rows D"]:
    lengths = column.value_lengths().drop_null()
    dimensions = lengths[0].as_py() if len(lengths) else 0
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


MATRICES: dict[str, Callable[[Path, str], tuple[int, int, Blocks]]] = {".npy": _npy, ".safetensors": _safetensors}
READERS = (*MATRICES, *COLUMNED)
"""Extensions of vector files."""
