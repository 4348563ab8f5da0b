"""Read rows, whatever their columns are called, as images with captions.

A row may have one caption, a list of them, several columns of them (`caption_0`, `caption_1`, …), or records with the
text in a field `raw`, as Karpathy's files have; a list may also be a JSON text. Rows of one image path are one image.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from aoq.pipeline.prepare.sources.listing import Files, Images, Listing

IMAGES = ("image", "filepath", "file_path", "image_path", "path", "filename", "file_name", "image_filename", "img")
CAPTIONS = ("caption", "captions", "sentences", "sentence", "text", "texts", "title", "raw")
NUMBERED = re.compile(r"(caption|text|sentence)_?\d+$")
IDS = ("image_id", "img_id", "imgid", "cocoid", "filename", "file_name", "image_filename", "id", "__key__")
SPLITS = ("split",)
TEXT_FIELDS = ("raw", "caption", "text", "sentence")


@dataclass(frozen=True)
class Columns:
    """The columns that the user names; those that are None are searched by their usual names."""

    image: str | None = None
    captions: tuple[str, ...] = ()
    id: str | None = None
    split: str | None = None


def read_rows(kind: str, rows: pa.Table, columns: Columns, images: Images | Path) -> Listing:
    """List the images of a table; `images` are its rows' own, or the folder where the paths start.

    Raises:
        ValueError: for a missing column, or one of an unknown kind.
    """
    rows = rows.combine_chunks()
    of_captions = _caption_columns(rows, columns)
    captions = _joined([_texts(name, _column(rows, name)) for name in of_captions])
    split = columns.split or _known(rows, SPLITS)
    splits = None if split is None else _strings(split, _column(rows, split))
    if not isinstance(images, Path):
        return _own_images(kind, rows, columns, images, captions, splits)
    named = _image_column(rows, columns)
    paths = _paths(rows, named)
    kind = f"{kind} (images in {named}, captions in {', '.join(of_captions)})"
    return _images_of_paths(kind, rows, columns, paths, images, captions, splits)


def _own_images(
    kind: str, rows: pa.Table, columns: Columns, images: Images, captions: pa.Array, splits: pa.Array | None
) -> Listing:
    """List rows that each are an image."""
    count = len(rows)
    return Listing(kind, images, np.arange(count), _ids(rows, columns, np.arange(count)), captions, splits)


def _images_of_paths(
    kind: str,
    rows: pa.Table,
    columns: Columns,
    paths: pa.Array,
    root: Path,
    captions: pa.Array,
    splits: pa.Array | None,
) -> Listing:
    """List rows by path: those of one path are one image, at the place of the first; it may occur in every split."""
    if paths.null_count:
        raise ValueError(
            f"row {pc.index(paths.is_null(), True).as_py() + 1} (from 1) names no image; fill or remove it."
        )
    whole = paths if splits is None else pc.binary_join_element_wise(paths, splits.fill_null(""), "\0")
    encoded = whole.dictionary_encode()
    of_row = encoded.indices.to_numpy()
    order = np.argsort(of_row, kind="stable")
    first = order[np.searchsorted(of_row[order], np.arange(len(encoded.dictionary)))]
    sizes = (
        np.add.reduceat(
            pc.list_value_length(captions).to_numpy()[order], np.searchsorted(of_row[order], np.arange(len(first)))
        )
        if len(first)
        else np.zeros(0, int)
    )
    texts = captions.take(pa.array(order)).flatten()
    offsets = pa.array(np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32))
    names = paths.take(pa.array(first))
    files = Files([str(root / name) for name in names.to_pylist()])
    ids = _ids(rows, columns, first) if columns.id else _relative(names, root)
    return Listing(
        kind,
        files,
        np.arange(len(first)),
        ids,
        pa.ListArray.from_arrays(offsets, texts),
        None if splits is None else splits.take(pa.array(first)),
    )


def _relative(names: pa.Array, root: Path) -> pa.Array:
    """Turn paths into ids: paths below the root become relative to it."""
    start = f"{root}/"
    return pa.array([name.removeprefix(start) for name in names.to_pylist()], pa.string())


def _ids(rows: pa.Table, columns: Columns, first: np.ndarray) -> pa.Array:
    """Use the column that is named, or one with a different value for every image; else row numbers."""
    if columns.id is not None:
        return _strings(columns.id, _column(rows, columns.id)).take(pa.array(first))
    for name in IDS:
        if name in rows.column_names and not pa.types.is_nested(rows.schema.field(name).type):
            found = _strings(name, _column(rows, name)).take(pa.array(first))
            if not found.null_count and pc.count_distinct(found).as_py() == len(found):
                return found
    return pa.array(map(str, range(len(first))), pa.string())


def _known(rows: pa.Table, names: Sequence[str]) -> str | None:
    return next((name for name in names if name in rows.column_names), None)


def _image_column(rows: pa.Table, columns: Columns) -> str:
    found = columns.image or _known(rows, IMAGES)
    if found is None:
        raise ValueError(f"no column is named like images; the columns are {_names(rows)}: name it by --image-column.")
    return found


def _caption_columns(rows: pa.Table, columns: Columns) -> list[str]:
    if columns.captions:
        return list(columns.captions)
    numbered = [name for name in rows.column_names if NUMBERED.fullmatch(name)]
    found = _known(rows, CAPTIONS)
    if found is None and not numbered:
        raise ValueError(
            f"no column is named like captions; the columns are {_names(rows)}: name one by --caption-column."
        )
    return numbered if found is None else [found]


def _column(rows: pa.Table, name: str) -> pa.Array:
    if rows.column_names.count(name) != 1:
        raise ValueError(f"there is no column {name!r}; the columns are {_names(rows)}.")
    column = rows[name]
    return (
        column.chunk(0)
        if column.num_chunks == 1
        else pa.concat_arrays(column.chunks)
        if column.num_chunks
        else pa.array([], column.type)
    )


def _names(rows: pa.Table) -> str:
    return ", ".join(rows.column_names)


def _paths(rows: pa.Table, name: str) -> pa.Array:
    """Read the paths in a column; Karpathy's `filepath` and `filename` are joined."""
    found = _strings(name, _column(rows, name))
    if name == "filepath" and "filename" in rows.column_names:
        return pc.binary_join_element_wise(found, _strings("filename", _column(rows, "filename")), "/")
    return found


def _strings(name: str, column: pa.Array) -> pa.Array:
    if pa.types.is_nested(column.type) or pa.types.is_binary(column.type):
        raise ValueError(f"column {name!r} is of {column.type}, and one text or number a row is needed.")
    return column.cast(pa.string())


def _texts(name: str, column: pa.Array) -> pa.Array:
    """Convert each row's value to a list of texts."""
    kind = column.type
    if pa.types.is_struct(kind):
        field = _text_field(name, kind)
        return _texts(name, column.field(field))
    if _is_list(kind) and pa.types.is_struct(kind.value_type):
        field = _text_field(name, kind.value_type)
        return pa.ListArray.from_arrays(*_parts(column, column.flatten().field(field).cast(pa.string())))
    if _is_list(kind):
        return pa.ListArray.from_arrays(*_parts(column, _strings(name, column.flatten())))
    texts = _strings(name, column)
    if (lists := _json_lists(texts)) is not None:
        return lists
    return pa.ListArray.from_arrays(pa.array(np.arange(len(texts) + 1, dtype=np.int32)), texts)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _parts(column: pa.Array, values: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Offsets of a column's lists, and values in place of its own."""
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
    return pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)), values


def _text_field(name: str, kind: Any) -> str:
    fields = [kind.field(i).name for i in range(kind.num_fields)]
    found = next((field for field in TEXT_FIELDS if field in fields), None)
    if found is None:
        raise ValueError(
            f"column {name!r} has records of {', '.join(fields)}; one of {', '.join(TEXT_FIELDS)} must hold the text."
        )
    return found


def _json_lists(texts: pa.Array) -> pa.Array | None:
    """Parse lists written as JSON; None unless all are."""
    if not len(texts) or not pc.all(pc.match_substring_regex(texts.fill_null(""), r"^\s*\[.*\]\s*$")).as_py():
        return None
    try:
        found = [json.loads(text) for text in texts.to_pylist()]
    except (ValueError, RecursionError):
        return None
    if not all(isinstance(text, str) for texts in found for text in texts):
        return None
    return pa.array(found, pa.list_(pa.string()))


def _joined(columns: list[pa.Array]) -> pa.Array:
    """Join the lists of several columns into one list per row."""
    if len(columns) == 1:
        return columns[0]
    lengths = np.stack([pc.list_value_length(column).to_numpy() for column in columns])
    starts = np.cumsum(lengths, axis=1) - lengths
    before = np.cumsum([0, *(int(length.sum()) for length in lengths)])[:-1]
    begin, size = (starts + before[:, None]).T.reshape(-1), lengths.T.reshape(-1)
    places = np.repeat(begin - (np.cumsum(size) - size), size) + np.arange(size.sum())
    texts = pa.concat_arrays([column.flatten() for column in columns]).take(pa.array(places))
    offsets = np.concatenate([[0], np.cumsum(lengths.sum(axis=0))]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), texts)
