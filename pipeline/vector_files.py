"""Matrices and ids that users name as FILE or FILE::NAME: arrays, columns, and data sets, saved or on the hub."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from jaxtyping import Shaped
from safetensors import safe_open
from typing_extensions import TypedDict

from aoq.pipeline.columns import open_parquet
from aoq.pipeline.digests import file_sha256
from aoq.pipeline.hub import is_of_hub, load_splits
from aoq.pipeline.reading import open_array, read_arrays, read_json, reading
from aoq.pipeline.search.problem import BLOCK, blocks

SAVED, SPLITS = "state.json", "dataset_dict.json"
"""The files that `save_to_disk` writes into the folder of a data set, and of several splits."""
Blocks = Iterator[Shaped[np.ndarray, "rows D"]]


class Matrix(NamedTuple):
    """An open file of vectors: their number, their dimensions, and the vectors in blocks."""

    rows: int
    dimensions: int
    blocks: Blocks
    whole: np.ndarray | None = None
    """The map of a .npy file, copy-on-write, so that torch takes it without a copy."""


class Array(NamedTuple):
    """An array of a file; `read` gives the rows from a start to before a stop."""

    shape: Sequence[int]
    dtype: str
    read: Callable[[int, int], np.ndarray]
    whole: np.ndarray | None = None


@dataclass(frozen=True)
class Columns:
    """Rows stored by column; `read` gives a column as arrays of up to `BLOCK` rows, in order."""

    schema: pa.Schema
    rows: int
    read: Callable[[str], Iterator[Any]]

    def named(self, is_wanted: Callable[[pa.DataType], bool]) -> list[str]:
        return [field.name for field in self.schema if is_wanted(field.type)]


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
            _hub_columns(name)
        elif (path / SPLITS).is_file():
            splits = sorted(saved.parent.name for saved in path.glob(f"*/{SAVED}"))
            raise ValueError(f"{path} holds a data set's splits, {splits}; name one: {path}/SPLIT::COLUMN.")
        elif not (path / SAVED).is_file():
            if path.suffix not in READERS or path.is_dir():
                known = f"none of {', '.join(READERS)} and no folder of save_to_disk"
                raise ValueError(f"{path} is {known}; save the vectors as one of these.")
            if not path.is_file():
                raise FileNotFoundError(f"{path} does not exist.")
        return cls(path, part)

    @property
    def sha256(self) -> str:
        """Hash the file, the hashes of a saved data set's files in order, or the hub's vectors and their shape."""
        if is_of_hub(str(self.path)):
            matrix = self.open()
            hasher = sha256(f"{matrix.rows} {matrix.dimensions}\0".encode())
            for block in matrix.blocks:
                hasher.update(np.ascontiguousarray(block).data)
            return hasher.hexdigest()
        if self.path.is_dir():
            return sha256("".join(map(file_sha256, _saved_shards(self.path))).encode()).hexdigest()
        return file_sha256(self.path)

    def open(self) -> Matrix:
        source = self.read()
        return self._open_column(source) if isinstance(source, Columns) else self._open_array(source)

    def _open_array(self, arrays: dict[str, Array]) -> Matrix:
        if self.part and list(arrays) == [""]:
            raise ValueError(f"{self.path} holds one array without a name; leave out ::{self.part}.")
        array = arrays[self._choose(list(arrays), "tensors")]
        shape = tuple(array.shape)
        if len(shape) != 2 or array.dtype not in FLOATS:
            raise ValueError(f"{self.path} holds {array.dtype} of shape {shape}; a row of floats per item is needed.")
        return Matrix(*shape, (array.read(*rows) for rows in blocks(shape[0], BLOCK)), array.whole)

    def _open_column(self, columns: Columns) -> Matrix:
        names = columns.named(_holds_vectors)
        if self.part in columns.schema.names and self.part not in names:
            kind = columns.schema.field(self.part).type
            raise ValueError(
                f"{self.path}: column {self.part!r} is of {kind}, and lists of floats are needed; such are {names}."
            )
        name = self._choose(names, "columns")

        def matrices() -> Blocks:
            return (self._matrix(name, column) for column in columns.read(name) if len(column))

        return Matrix(columns.rows, next(matrices(), np.empty((0, 0))).shape[1], matrices())

    def _matrix(self, name: str, column: Any) -> Shaped[np.ndarray, "rows D"]:
        lengths = column.value_lengths().drop_null()
        dimensions = lengths[0].as_py() if len(lengths) else 0
        if column.null_count or column.flatten().null_count or len(lengths.unique()) > 1:
            raise ValueError(f"{self.path}: the lists of column {name!r} are not all of {dimensions} numbers.")
        return column.flatten().to_numpy(zero_copy_only=False).reshape(len(column), dimensions)

    def _choose(self, names: list[str], kind: str) -> str:
        if self.part and self.part not in names:
            raise ValueError(f"{self.path} has no {self.part!r} among its {kind} of vectors; they are {names}.")
        if not self.part and len(names) != 1:
            raise ValueError(f"{self.path} has {len(names)} {kind} of vectors, {names}; name one: {self.path}::NAME.")
        return self.part or names[0]

    def read(self) -> Columns | dict[str, Array]:
        """Open the columns or the arrays of the file."""
        if is_of_hub(str(self.path)):
            return _hub_columns(str(self.path))
        return _arrow(*_saved_shards(self.path)) if self.path.is_dir() else READERS[self.path.suffix](self.path)


def _holds_vectors(kind: pa.DataType) -> bool:
    value = getattr(kind, "value_type", None)  # for a data set's two-dimensional arrays this is a name
    return isinstance(value, pa.DataType) and pa.types.is_floating(value)


def _array(array: np.ndarray) -> Array:
    return Array(array.shape, array.dtype.name, lambda start, stop: array[start:stop])


def _npy(path: Path) -> dict[str, Array]:
    whole = open_array(path, "c")
    return {"": _array(whole)._replace(whole=whole)}


def _npz(path: Path) -> dict[str, Array]:
    with reading(path, "an .npz file"), zipfile.ZipFile(path) as archive:
        names = [Path(name).stem for name in archive.namelist()]
    return dict(zip(names, map(_array, read_arrays(path, names)), strict=True))


def _safetensors(path: Path) -> dict[str, Array]:
    def read(name: str, start: int, stop: int) -> np.ndarray:
        if kinds[name].get_dtype() != "BF16":
            return kinds[name][start:stop]
        with safe_open(path, framework="pt") as tensors:  # numpy has no bfloat16
            return tensors.get_slice(name)[start:stop].float().numpy()

    with reading(path, "a safetensors file"):
        file = safe_open(path, framework="np")
        kinds = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118  (no mapping)
    return {name: Array(kind.get_shape(), kind.get_dtype(), partial(read, name)) for name, kind in kinds.items()}


def _parquet(path: Path) -> Columns:
    def read(name: str) -> Iterator[Any]:
        with open_parquet(path) as file:
            for batch in file.batches(BLOCK, [name]):
                yield batch.column(0).combine_chunks()

    with open_parquet(path) as file:
        return Columns(file.file.schema_arrow, len(file), read)


def _arrow(*paths: Path) -> Columns:
    """Read Arrow files one after another, each in the format of files (Feather) or of streams."""

    def read(name: str) -> Iterator[Any]:
        for path in paths:
            with _opened_arrow(path, [schemas[0].names.index(name)]) as (_, batches):
                for batch in batches:
                    column = batch.column(0)
                    column.validate(full=True)  # a hostile file's offsets may point anywhere
                    yield from (column.slice(start, BLOCK) for start in range(0, len(column), BLOCK))

    rows, schemas = 0, []
    for path in paths:
        with _opened_arrow(path, [0]) as (_, batches):
            rows += sum(batch.num_rows for batch in batches)
        with _opened_arrow(path) as (schema, _):
            schemas.append(schema.remove_metadata())
        if schemas[-1] != schemas[0]:
            raise ValueError(f"{path} and {paths[0]} of one data set have different columns; save it again.")
    return Columns(schemas[0], rows, read)


@contextmanager
def _opened_arrow(path: Path, fields: Sequence[int] = ()) -> Iterator[tuple[pa.Schema, Iterator[Any]]]:
    """Open the schema and the batches of these fields; the batches stay on disk until they are used."""
    options = pa.ipc.IpcReadOptions(included_fields=list(fields), use_threads=False)
    with reading(path, "an Arrow file"), pa.memory_map(str(path)) as source:
        try:
            file = pa.ipc.open_file(source, options=options)
        except pa.ArrowInvalid:
            source.seek(0)
            stream = pa.ipc.open_stream(source, options=options)
            yield stream.schema, iter(stream)
        else:
            yield file.schema, map(file.get_batch, range(file.num_record_batches))


def _hub_columns(given: str) -> Columns:
    """Open one split of a data set on the hub; refuse several splits unless one is named."""

    def read(name: str) -> Iterator[Any]:
        for table in rows.select_columns([name]).iter(batch_size=BLOCK):
            yield table[name].combine_chunks()

    splits = load_splits(given)
    if len(splits) > 1:
        raise ValueError(f"{given} has the splits {sorted(splits)}; name one: {given}@SPLIT::COLUMN.")
    (rows,) = (split.with_format("arrow") for split in splits.values())
    return Columns(rows.features.arrow_schema.remove_metadata(), len(rows), read)


class _DataFile(TypedDict):
    filename: str


class _Saved(TypedDict):
    _data_files: list[_DataFile]


def _saved_shards(folder: Path) -> list[Path]:
    """Return the files of a data set that `datasets` saved, in order."""
    state = read_json(folder / SAVED, _Saved, remedy="save the data set again")
    paths = [folder / file["filename"] for file in state["_data_files"]]
    if not paths or state.get("_indices_data_files") or any(path.parent != folder for path in paths):
        raise ValueError(f"{folder / SAVED} names no files of rows in order; save the data set again.")
    return paths


FLOATS = ("float16", "float32", "float64", "F16", "F32", "F64", "BF16")
COLUMNED: Mapping[str, Callable[[Path], Columns]] = {".parquet": _parquet, ".arrow": _arrow, ".feather": _arrow}
READERS: Mapping[str, Callable[[Path], Columns | dict[str, Array]]] = {
    ".npy": _npy,
    ".npz": _npz,
    ".safetensors": _safetensors,
    **COLUMNED,
}
"""Readers of vector files, by extension."""
