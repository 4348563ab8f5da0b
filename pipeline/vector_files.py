"""FILE or FILE::NAME: the arrays and columns of the files, data sets and folders that hold vectors or ids."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Shaped
from safetensors import safe_open
from typing_extensions import TypedDict

from aoq.pipeline.columns import plain, plain_type
from aoq.pipeline.extras import is_hub_name, load_splits
from aoq.pipeline.files import file_sha256
from aoq.pipeline.reading import open_array, read_arrays, read_json, reading
from aoq.pipeline.search.problem import READ_ROWS, blocks

_SAVED, _SPLITS = "state.json", "dataset_dict.json"
"""The files that `save_to_disk` writes into the folder of a data set, and of several splits."""
FLOATS = ("float16", "float32", "float64", "F16", "F32", "F64", "BF16")


@dataclass(frozen=True)
class FilePart:
    """An array or a column of an open file; `blocks` reads its rows, in order."""

    kind: str | pa.DataType
    shape: tuple[int, ...]
    """For a column, the number of rows."""
    blocks: Callable[[], Iterator[Any]]
    whole: np.ndarray | None = None
    """The map of a .npy file, copy-on-write, so that torch takes it without a copy."""

    @property
    def holds_vectors(self) -> bool:
        if isinstance(self.kind, str):
            return len(self.shape) == 2 and self.kind in FLOATS
        value = getattr(self.kind, "value_type", None)  # a data set's two-dimensional arrays have a type's name here
        return isinstance(value, pa.DataType) and pa.types.is_floating(value)


class VectorFile(NamedTuple):
    """FILE or FILE::NAME: NAME is the part of the file that holds the vectors or the ids."""

    path: Path
    """May name a data set of the hub."""
    part: str

    @classmethod
    def of(cls, source: str) -> VectorFile:
        """Parse FILE or FILE::NAME; refuse it unless there is such a file or data set."""
        name, _, part = source.partition("::")
        path = Path(name)
        if is_hub_name(name):
            _hub_parts(name)
        elif (path / _SPLITS).is_file():
            splits = sorted(saved.parent.name for saved in path.glob(f"*/{_SAVED}"))
            raise ValueError(f"{path} holds a data set's splits, {splits}; name one: {path}/SPLIT::COLUMN.")
        elif not _files_at(path):
            known = (
                f"none of {', '.join(VECTOR_READERS)}, no folder of such files of one kind, and none of save_to_disk"
            )
            raise ValueError(f"{path} is {known}; save the vectors as one of these.")
        elif not path.exists():
            raise FileNotFoundError(f"{path} does not exist.")
        return cls(path, part)

    @property
    def sha256(self) -> str:
        """Hash the file, the hashes of a folder's files in order, or the hub's vectors and their shape."""
        if is_hub_name(str(self.path)):
            matrix = self.open()
            hasher = sha256("{} {}\0".format(*matrix.shape).encode())
            for block in matrix.blocks():
                hasher.update(np.ascontiguousarray(block).data)
            return hasher.hexdigest()
        if self.path.is_dir():
            return sha256("".join(map(file_sha256, _files_at(self.path))).encode()).hexdigest()
        return file_sha256(self.path)

    def read(self) -> dict[str, FilePart]:
        """Open the columns or the arrays of the file by name."""
        if is_hub_name(str(self.path)):
            return _hub_parts(str(self.path))
        return _joined_parts(_files_at(self.path))

    def open(self) -> FilePart:
        """Open the named matrix, or the only one; its shape has both sizes, and its blocks are matrices."""
        parts = self.read()
        names = [name for name, part in parts.items() if part.holds_vectors]
        if self.part and list(parts) == [""]:
            raise ValueError(f"{self.path} holds one array without a name; leave out ::{self.part}.")
        if self.part and self.part not in parts:
            raise ValueError(f"{self.path} has no part {self.part!r}; those with a row of floats per item are {names}.")
        if not self.part and len(parts) > 1 and len(names) != 1:
            raise ValueError(f"{self.path} has {len(names)} parts of vectors, {names}; name one: {self.path}::NAME.")
        name = self.part or (names or [*parts])[0]
        part = parts[name]
        if not part.holds_vectors:
            raise ValueError(
                f"{self.path} holds {part.kind} of shape {part.shape}{f' in {name!r}' * bool(name)}; a row of floats "
                "per item is needed."
            )
        if isinstance(part.kind, str):
            return part
        first = next(self._matrices(name, part), np.empty((0, 0)))
        return replace(part, shape=(*part.shape, first.shape[1]), blocks=partial(self._matrices, name, part))

    def ids(self) -> list[str]:
        """Read the named column of ids: texts or whole numbers, as texts."""
        parts = self.read()
        columns = {name: part.kind for name, part in parts.items() if isinstance(part.kind, pa.DataType)}
        names = [name for name, kind in columns.items() if pa.types.is_string(kind) or pa.types.is_integer(kind)]
        if self.part not in names:
            named = f"{self.path}::{self.part}".removesuffix("::")
            known = f"those of texts or whole numbers are {names}"
            raise ValueError(f"{named} names no column of ids; {known}: {self.path}::NAME.")
        ids = [value for column in parts[self.part].blocks() for value in column.to_pylist()]
        if None in ids:
            raise ValueError(f"{self.path}: row {ids.index(None)} has no id in column {self.part!r}; give it one.")
        return list(map(str, ids))

    def _matrices(self, name: str, part: FilePart) -> Iterator[Shaped[np.ndarray, "rows D"]]:
        start = 0
        for column in filter(len, part.blocks()):
            lengths = column.value_lengths().drop_null()
            dimensions = lengths[0].as_py() if len(lengths) else 0
            if column.null_count or column.flatten().null_count or len(lengths.unique()) > 1:
                rows = enumerate(column.to_pylist(), start)
                wrong = next(row for row, one in rows if not one or None in one or len(one) != dimensions)
                raise ValueError(
                    f"{self.path}: the lists of column {name!r} must all have {dimensions} numbers; that of row "
                    f"{wrong} does not."
                )
            yield column.flatten().to_numpy(zero_copy_only=False).reshape(len(column), dimensions)
            start += len(column)


def _array_part(array: np.ndarray, whole: np.ndarray | None = None) -> FilePart:
    def read() -> Iterator[np.ndarray]:
        return (array[start:stop] for start, stop in blocks(len(array), READ_ROWS))

    return FilePart(array.dtype.name, array.shape, read, whole)


def _npy_parts(path: Path) -> dict[str, FilePart]:
    whole = open_array(path, "c")
    return {"": _array_part(whole, whole)}


def _safetensors_parts(path: Path) -> dict[str, FilePart]:
    def read(name: str, kind: str) -> Iterator[np.ndarray]:
        with safe_open(path, framework="pt" if kind == "BF16" else "np") as tensors:  # numpy has no bfloat16
            rows = tensors.get_slice(name)
            for start, stop in blocks(rows.get_shape()[0], READ_ROWS):
                yield rows[start:stop].float().numpy() if kind == "BF16" else rows[start:stop]

    with reading(path, "a safetensors file"), safe_open(path, framework="np") as file:
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118  (no mapping)
        kinds = {name: (each.get_dtype(), tuple(each.get_shape())) for name, each in slices.items()}
    return {name: FilePart(kind, shape, partial(read, name, kind)) for name, (kind, shape) in kinds.items()}


def _columns(source: object, schema: pa.Schema, rows: int, read: Callable[[str], Iterator[Any]]) -> dict[str, FilePart]:
    if len(set(schema.names)) != len(schema) or not schema.names:
        raise ValueError(f"{source} has the columns {schema.names}; give each column a different name.")
    return {field.name: FilePart(plain_type(field.type), (rows,), partial(read, field.name)) for field in schema}


def _parquet_parts(path: Path) -> dict[str, FilePart]:
    def read(name: str) -> Iterator[Any]:
        with reading(path, "a Parquet file"), pq.ParquetFile(path, page_checksum_verification=True) as file:
            for batch in file.iter_batches(READ_ROWS, columns=[name]):
                yield plain(batch.column(0))

    with reading(path, "a Parquet file"), pq.ParquetFile(path) as file:
        return _columns(path, file.schema_arrow, file.metadata.num_rows, read)


def _arrow_parts(path: Path) -> dict[str, FilePart]:
    """Read a file of the format of files (Feather) or of streams."""

    def read(name: str) -> Iterator[Any]:
        with _opened_arrow(path, [schema.names.index(name)]) as (_, batches):
            for batch in batches:
                column = batch.column(0)
                column.validate(full=True)  # a hostile file's offsets may point anywhere
                yield from (plain(column.slice(start, READ_ROWS)) for start in range(0, len(column), READ_ROWS))

    with _opened_arrow(path, [0]) as (_, batches):
        rows = sum(batch.num_rows for batch in batches)
    with _opened_arrow(path) as (schema, _):
        pass
    return _columns(path, schema, rows, read)


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


def _hub_parts(source: str) -> dict[str, FilePart]:
    """Open one split of a data set on the hub; refuse several splits unless one is named."""

    def read(name: str) -> Iterator[Any]:
        for table in rows.select_columns([name]).iter(batch_size=READ_ROWS):
            yield plain(table[name].combine_chunks())

    splits = load_splits(source)
    if len(splits) > 1:
        raise ValueError(f"{source} has the splits {sorted(splits)}; name one: {source}@SPLIT::COLUMN.")
    (rows,) = (split.with_format("arrow") for split in splits.values())
    return _columns(source, rows.features.arrow_schema.remove_metadata(), len(rows), read)


def _of_kind(part: FilePart, kind: str | pa.DataType | None) -> FilePart:
    """Give a column without any value, which has no type in its file, the type it has in the others."""
    is_typed = kind is None or part.kind != pa.null()
    return part if is_typed else replace(part, kind=kind, blocks=lambda: (one.cast(kind) for one in part.blocks()))


def _joined_parts(paths: Sequence[Path]) -> dict[str, FilePart]:
    """Read files that have the same parts one after another."""
    opened = [VECTOR_READERS[path.suffix](path) for path in paths]
    kinds = {name: part.kind for parts in opened for name, part in parts.items() if part.kind != pa.null()}
    first, *others = opened = [{name: _of_kind(one, kinds.get(name)) for name, one in each.items()} for each in opened]
    shapes = [{name: (part.kind, part.shape[1:]) for name, part in parts.items()} for parts in opened]
    if wrong := next((path for path, shape in zip(paths, shapes, strict=True) if shape != shapes[0]), None):
        raise ValueError(f"{wrong} and {paths[0]} have other columns, types or dimensions; save them again.")

    def read(name: str) -> Iterator[Any]:
        return chain.from_iterable(parts[name].blocks() for parts in opened)

    rows = {name: sum(parts[name].shape[0] for parts in opened) for name in first}
    longer = {
        name: replace(part, shape=(rows[name], *part.shape[1:]), blocks=partial(read, name), whole=None)
        for name, part in first.items()
    }
    return longer if others else first


class _DataFile(TypedDict):
    filename: str


class _Saved(TypedDict):
    _data_files: list[_DataFile]


def _files_at(path: Path) -> list[Path]:
    """Return the file, or a folder's files in order: a saved data set, or files of one kind (clip-retrieval)."""
    if not path.is_dir():
        return [path] if path.suffix in VECTOR_READERS else []
    if not (path / _SAVED).is_file():
        suffixes = {file.suffix for file in path.iterdir()} & {*VECTOR_READERS}
        return sorted(path.glob(f"*{suffixes.pop()}"), key=_by_numbers) if len(suffixes) == 1 else []
    state = read_json(path / _SAVED, _Saved, remedy="save the data set again")
    paths = [path / file["filename"] for file in state["_data_files"]]
    if not paths or state.get("_indices_data_files") or any(file.parent != path for file in paths):
        raise ValueError(f"{path / _SAVED} names no files of rows in order; save the data set again.")
    return paths


def _by_numbers(path: Path) -> list[tuple[int, str]]:
    """Sort `emb_10` behind `emb_9`."""
    return [(int(text) if text.isdecimal() else -1, text) for text in re.split(r"(\d+)", path.name)]


COLUMNED: Mapping[str, Callable[..., dict[str, FilePart]]] = {
    ".parquet": _parquet_parts,
    ".arrow": _arrow_parts,
    ".feather": _arrow_parts,
}
VECTOR_READERS: Mapping[str, Callable[[Path], dict[str, FilePart]]] = {
    ".npy": _npy_parts,
    ".npz": lambda path: {name: _array_part(array) for name, array in read_arrays(path).items()},
    ".safetensors": _safetensors_parts,
    **COLUMNED,
}
"""Readers of vector files, by extension."""
