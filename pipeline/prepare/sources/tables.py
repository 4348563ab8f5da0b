"""Tables of images and captions: CSV and variants, JSON lines, Parquet, or a folder with such a table or tables; and
data sets of Hugging Face `datasets`, saved by save_to_disk or of the hub."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from aoq.pipeline.columns import find_separator, parse_json_lines
from aoq.pipeline.extras import import_extra
from aoq.pipeline.prepare.sources.images import DatasetImages, ParquetImages
from aoq.pipeline.prepare.sources.records import (
    IMAGE_FIELDS,
    Fields,
    Records,
    column_values,
    concatenate_splits,
    record_columns,
    split_of_file,
)
from aoq.pipeline.reading import read_file, reading

SUFFIXES = {".csv": "CSV", ".tsv": "TSV", ".jsonl": "JSON lines", ".ndjson": "JSON lines", ".parquet": "Parquet"}
METADATA = ("metadata.csv", "metadata.jsonl", "metadata.parquet", "captions.csv", "captions.tsv")
SAVED = ("dataset_dict.json", "state.json")


def table_in(source: Path) -> Path | None:
    """Find the table that a source is, or that a folder of images has."""
    if source.is_dir():
        return next((source / name for name in METADATA if (source / name).is_file()), None)
    return source if source.suffix.lower() in SUFFIXES else None


def list_table(source: Path, images: Path | None, fields: Fields) -> Records:
    """List the images that a table names, below the folder `images`, or that it holds."""
    path = table_in(source)
    assert path is not None  # the source was recognised by it
    suffix = path.suffix.lower()
    kind, root = f"a {SUFFIXES[suffix]} table", images or path.parent
    if suffix == ".parquet":
        return _list_parquet(kind, [path], fields, root, [None])
    with reading(path, kind):
        is_csv = suffix in (".csv", ".tsv")
        columns = _read_csv(path) if is_csv else record_columns(parse_json_lines(path), fields)
    return Records(kind, columns, root.absolute(), fields)


def parquet_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.parquet")) or sorted((folder / "data").glob("*.parquet"))


def list_parquet_folder(source: Path, images: Path | None, fields: Fields) -> Records:
    """List files as the hub names them: `train-00000-of-00002.parquet`."""
    paths = parquet_files(source)
    return _list_parquet("a folder of Parquet files", paths, fields, images or source, [*map(split_of_file, paths)])


def _list_parquet(
    kind: str, paths: Sequence[Path], fields: Fields, root: Path, splits: Sequence[str | None]
) -> Records:
    """List Parquet files of one schema; images in them stay there."""
    parts = []
    for path in paths:
        with reading(path, "a Parquet table"):
            schema = pq.read_schema(path)
            held = [field.name for field in schema if _holds_images(field.type)]
            names = [name for name in schema.names if name not in held]
            parts.append(pq.ParquetFile(path, page_checksum_verification=True).read(names))
    named = fields.image or next((name for name in IMAGE_FIELDS if name in held), None)
    columns = concatenate_splits(parts, splits)
    if named is not None and named in held:
        return Records(kind, columns, ParquetImages([str(path) for path in paths], named, str(root.absolute())), fields)
    return Records(kind, columns, root.absolute(), fields)


def _holds_images(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return "bytes" in kind.names
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind))


def _read_csv(path: Path) -> dict[str, list[str]]:
    """Read all columns as texts: an id 007 is not 7."""
    text = read_file(path).decode("utf-8-sig")
    first = re.split(r"[\r\n]", text, maxsplit=1)[0]
    header, *rows = _rows(text, find_separator(first))
    if len({*header}) < len(header):
        raise ValueError(f"two columns have the same name; they are {', '.join(header)}")
    if wrong := next((number for number, row in enumerate(rows, start=1) if len(row) != len(header)), None):
        raise ValueError(f"row {wrong} has {len(rows[wrong - 1])} values, and the header names {len(header)} columns")
    return {name: [row[place] for row in rows] for place, name in enumerate(header)}


def _rows(text: str, separator: str) -> list[list[str]]:
    """Read quoted rows, with backslashes before quotation marks if only those explain the text, or unquoted rows.

    Quotation marks belong to the text if each line is a whole row without them and quoting would join lines.
    """
    plain = _parse_csv(text, delimiter=separator, quoting=csv.QUOTE_NONE)
    try:
        quoted = _parse_csv(text, delimiter=separator, strict=True)
    except ValueError as error:
        if rows := _escaped_rows(text, separator) or (_are_whole(plain) and plain):
            return rows
        raise ValueError(f"{error}; a quotation mark inside a quoted value is written twice") from None
    unquoted = re.sub(rf'(?<![^{separator}\r\n])"(?:[^"]|"")*"(?![^{separator}\r\n])', "", text)
    if ('"' in unquoted or not _are_whole(quoted)) and (rows := _escaped_rows(text, separator)):
        return rows
    joins = any("\n" in value or "\r" in value for row in quoted for value in row)
    return plain if joins and _are_whole(plain) and '"' not in "".join(plain[0]) else quoted


def _escaped_rows(text: str, separator: str) -> list[list[str]]:
    """Read rows in which every backslash stands before a character that needs it; none if others are there."""
    escaped = re.sub(rf'\\[\\"{separator}]', "", text)
    if "\\" in escaped or len(escaped) == len(text):
        return []
    with suppress(ValueError):
        rows = _parse_csv(text, delimiter=separator, escapechar="\\", doublequote=False, strict=True)
        return rows if _are_whole(rows) else []
    return []


def _are_whole(rows: list[list[str]]) -> bool:
    return len({*map(len, rows)}) == 1


def _parse_csv(text: str, **dialect: Any) -> list[list[str]]:
    rows, reader = [], csv.reader(io.StringIO(text, newline=""), **dialect)
    try:
        rows = [row for row in reader if row]
    except csv.Error as error:
        raise ValueError(f"line {reader.line_num}: {error}") from None
    return rows or [[]]


def saved_file(source: Path) -> Path | None:
    """Return the file by which a saved data set is recognised."""
    return next((source / name for name in SAVED if (source / name).is_file()), None)


def list_saved(source: Path, images: Path | None, fields: Fields) -> Records:
    library = import_extra("datasets", "datasets", "reading a Hugging Face data set")
    with reading(saved_file(source) or source, "part of a data set that save_to_disk wrote"):
        saved = library.load_from_disk(str(source))
    return list_dataset(saved if isinstance(saved, dict) else {"all": saved}, images, fields)


def list_dataset(splits: dict[str, Any], images: Path | None, fields: Fields) -> Records:
    """List all splits of a data set one after another."""
    library = import_extra("datasets", "datasets", "reading a Hugging Face data set")
    whole = library.concatenate_datasets(list(splits.values())).with_format(None)
    kinds = whole.features
    held = [name for name, kind in kinds.items() if isinstance(kind, library.Image) or _holds_bytes(kind)]
    for name in held:
        if isinstance(kinds[name], library.Image):
            whole = whole.cast_column(name, library.Image(decode=False))
    others = [name for name in whole.column_names if name not in held]
    parts = [part.select_columns(others).with_format("arrow")[:] for part in splits.values()]
    kind, columns = "a Hugging Face data set", concatenate_splits(parts, [*splits])
    for name in {*columns} & {*kinds}:
        if isinstance(kinds[name], library.ClassLabel):
            columns[name] = [
                None if value is None else kinds[name].int2str(value) for value in column_values(columns, name)
            ]
    named = fields.image or next((name for name in (*IMAGE_FIELDS, *held) if name in held), None)
    if named is not None and named in held:
        return Records(kind, columns, DatasetImages(whole, named, str((images or Path()).absolute())), fields)
    if images is None:
        raise ValueError("the data set names image files and does not hold them; say where they are: --images FOLDER.")
    return Records(kind, columns, images.absolute(), fields)


def _holds_bytes(kind: Any) -> bool:
    return getattr(kind, "dtype", None) in ("binary", "large_binary") or (isinstance(kind, dict) and "bytes" in kind)
