"""Readers of Parquet, CSV and JSON lines: columns of the required types, or one sentence that names the file."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq

from aoq.pipeline.reading import parse_json, read_utf8, reading

SEPARATORS = ",\t|;"


@dataclass(frozen=True)
class Parquet:
    """An open Parquet file; each page that has a checksum is checked when it is read."""

    file: pq.ParquetFile
    _columns: pa.Schema
    _nullable: Collection[str]
    _reading: Callable[[], AbstractContextManager[None]]

    def __len__(self) -> int:
        return int(self.file.metadata.num_rows)

    def read(self) -> pa.Table:
        with self._reading():
            return fitted(self.file.read(self._columns.names), self._columns, self._nullable)

    def batches(self, rows: int) -> Iterator[pa.Table]:
        """Iterate over blocks of up to `rows` rows."""
        with self._reading():
            for batch in self.file.iter_batches(rows, columns=self._columns.names):
                yield fitted(pa.Table.from_batches([batch]), self._columns, self._nullable)


@contextmanager
def open_parquet(
    path: Path,
    columns: pa.Schema,
    *,
    optional: Collection[str] = (),
    nullable: Collection[str] = (),
    remedy: str = "",
) -> Iterator[Parquet]:
    """Open a Parquet file that has columns of these types (`fitted`), except for `optional` ones.

    Raises:
        ValueError: on opening if columns are missing or have other types; on reading for invalid values.
    """
    reading_it = partial(reading, path, f"a Parquet file with the columns {', '.join(columns.names)}", remedy)
    with reading_it():
        file = pq.ParquetFile(path, page_checksum_verification=True)
        there = file.schema_arrow.names
        columns = pa.schema([field for field in columns if field.name in there or field.name not in optional])
        fitting_kinds(file.schema_arrow, columns)
    with file:
        yield Parquet(file, columns, nullable, reading_it)


def read_parquet(path: Path, columns: pa.Schema, *, nullable: Collection[str] = (), remedy: str = "") -> pa.Table:
    with open_parquet(path, columns, nullable=nullable, remedy=remedy) as file:
        return file.read()


def find_separator(header: str) -> str:
    """Return the separator of a CSV file, judged by its first line.

    >>> find_separator("image;caption"), find_separator("image")
    (';', ',')
    """
    return max(SEPARATORS, key=header.count)


def _csv_options(path: Path) -> csv.ParseOptions:
    try:
        with path.open(encoding="utf-8") as file:
            header = file.readline(1 << 16)
    except UnicodeDecodeError:
        header = read_utf8(path)  # says where
    return csv.ParseOptions(delimiter=find_separator(header), newlines_in_values=True)


def parse_csv(path: Path, columns: pa.Schema, nullable: Collection[str] = ()) -> pa.Table:
    """Read columns of a CSV file as these types (`fitted`); text stays unchanged."""
    texts = {field.name: field.type for field in columns if pa.types.is_string(field.type)}
    options = _csv_options(path)
    try:
        table = csv.read_csv(path, parse_options=options, convert_options=csv.ConvertOptions(column_types=texts))
    except pa.ArrowInvalid:
        read_utf8(path)  # says where a file is not UTF-8
        raise
    if len(table):
        return fitted(table, columns, nullable)
    return table.select(columns.names).cast(columns)  # a CSV file without rows has no column types


def open_columns(path: Path) -> tuple[Mapping[str, pa.DataType], Callable[[pa.Schema, Collection[str]], pa.Table]]:
    """Return the types of a file's columns, and a reader of chosen columns, some of which may have empty values."""
    if path.suffix in (".csv", ".tsv"):
        with csv.open_csv(path, parse_options=_csv_options(path)) as opened:
            types = dict.fromkeys(opened.schema.names, pa.string())  # text until read: an id 007 is no number
        return types, partial(parse_csv, path)
    if path.suffix == ".jsonl":
        table = pa.table(transpose(parse_json_lines(path)))
        return dict(zip(table.schema.names, table.schema.types, strict=True)), partial(fitted, table)
    file = pq.ParquetFile(path, page_checksum_verification=True)
    types = {field.name: plain_type(field.type) for field in file.schema_arrow}
    return types, lambda columns, nullable: fitted(file.read(columns.names), columns, nullable)


def parse_json_lines(path: Path) -> list[dict[str, Any]]:
    """Read the objects of a JSON lines file. Arrow's own reader can crash on damaged lines."""
    rows = []
    for number, line in enumerate(read_utf8(path).split("\n"), start=1):
        try:
            rows += [parse_json(line, dict[str, Any])] if line.strip() else []
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
    return rows


def transpose(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the columns of all rows; None where a row lacks the key.

    >>> transpose([{"a": 1}, {"a": 2, "b": 3}])
    {'a': [1, 2], 'b': [None, 3]}
    """
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of `plain` columns of this type."""
    if pa.types.is_dictionary(kind):
        return plain_type(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType):
        return plain_type(kind.storage_type)
    return pa.string() if pa.types.is_large_string(kind) or pa.types.is_string_view(kind) else kind


def plain(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Decode categories of pandas and Polars, which are dictionaries, and return text of any type as strings."""
    kind = plain_type(column.type)
    if kind == column.type:
        return column
    if isinstance(column, pa.ChunkedArray):
        return pa.chunked_array(map(plain, column.chunks), kind)
    if isinstance(column.type, pa.BaseExtensionType):
        return plain(column.storage)
    if pa.types.is_dictionary(column.type):  # Arrow cannot cast dictionaries of string views
        return plain(column.dictionary).take(column.indices)
    return column.cast(kind)


def fitted(table: pa.Table, columns: pa.Schema, nullable: Collection[str] = ()) -> pa.Table:
    """Cast columns of a table to these types; integers may have any width, or be whole floats; floats are not narrowed.

    Raises:
        ValueError: for missing columns or other types, numbers out of range, and empty values except in `nullable`
        columns, where lists may not be empty either.
    """
    kinds = fitting_kinds(table.schema, columns)
    table = pa.table({name: plain(table[name]) for name in columns.names})
    for name in columns.names:
        column, is_list = table[name], pa.types.is_list(columns.field(name).type)
        nulls = column.null_count if is_list or name not in nullable else 0
        if is_list and name not in nullable:
            nulls += sum(chunk.flatten().null_count for chunk in column.chunks)
        if nulls:
            raise ValueError(f"{nulls} values of column {name!r} are empty")
    return table.cast(kinds)


def fitting_kinds(present: pa.Schema, columns: pa.Schema) -> pa.Schema:
    """Return the types to which `fitted` casts the columns of a file; refuse columns that do not fit."""
    if wrong := [name for name in columns.names if present.names.count(name) != 1]:
        raise ValueError(f"it needs one column {wrong[0]!r}; its columns are {present.names}")
    kinds = {field.name: _fitting_kind(plain_type(present.field(field.name).type), field.type) for field in columns}
    if wrong := [name for name, kind in kinds.items() if kind is None]:
        kind, needed = (schema.field(wrong[0]).type for schema in (present, columns))
        raise ValueError(f"column {wrong[0]!r} has type {kind}, and {needed} is needed")
    return pa.schema(kinds)


def _fitting_kind(kind: pa.DataType, needed: pa.DataType) -> pa.DataType | None:
    if pa.types.is_list(needed):
        is_like = pa.types.is_fixed_size_list(kind) and _fitting_kind(kind.value_type, needed.value_type)
        return pa.list_(needed.value_type, kind.list_size) if is_like else None
    is_number = pa.types.is_integer(needed) or pa.types.is_floating(needed)
    # Floats become integers only if they are whole: pandas makes floats of a column with gaps.
    are_floats = pa.types.is_floating(kind) and (pa.types.is_integer(needed) or kind.bit_width <= needed.bit_width)
    fits = is_number and (pa.types.is_integer(kind) or are_floats)
    return needed if fits or kind == needed else None
