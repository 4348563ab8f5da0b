"""Read rows, whatever their columns are called, as images with captions.

A row may have one caption, a list of them, several columns of them (`caption_0`, `caption_1`, …), or records with the
text in a field `raw`, as Karpathy's files have; a list may also be a JSON text. Rows with the same path are one image.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Int

from aoq.pipeline.prepare.sources.listing import Files, Images, Listing

IMAGES = ("image", "filepath", "file_path", "image_path", "path", "filename", "file_name", "image_filename", "img")
CAPTIONS = ("caption", "captions", "sentences", "sentence", "text", "texts", "title", "raw")
NUMBERED = re.compile(r"(caption|text|sentence)_?\d+$")
IDS = ("image_id", "img_id", "imgid", "cocoid", "filename", "file_name", "image_filename", "id", "__key__")
SPLIT = "split"
TEXT_FIELDS = ("raw", "caption", "text", "sentence")
SPLIT_NAME = re.compile(r"(train|training|val|valid|validation|dev|test)(?=[^A-Za-z]|$)")
WHITE = r"[\s\x{0b}\x{1c}-\x{1f}\x{85}\x{2028}\x{2029}]+"
"""White space and anything that some programs take for the end of a line: the captions file has one caption a line."""


@dataclass(frozen=True)
class Columns:
    """The columns that the user names; those that are None are found by their usual names."""

    image: str | None = None
    captions: tuple[str, ...] = ()
    id: str | None = None
    split: str | None = None


def read_rows(kind: str, rows: pa.Table, columns: Columns, images: Images | Path) -> Listing:
    """List the images of a table; `images` are its rows' own, or the folder where the paths start.

    Raises:
        ValueError: for a missing column, or one of an unknown kind.
    """
    caption_columns = list(columns.captions) or _find_caption_columns(rows)
    texts, owners = (list(parts) for parts in zip(*(_texts(rows, name) for name in caption_columns), strict=True))
    texts, row_of = pa.concat_arrays(texts), np.concatenate(owners)
    split = columns.split or (SPLIT if SPLIT in rows.column_names else None)
    splits = None if split is None else _strings(split, _column(rows, split))
    if not isinstance(images, Path):
        every = np.arange(len(rows))
        return Listing(kind, images, every, _ids(rows, columns, every), _lists(texts, row_of, len(rows)), splits)
    named = columns.image or next((name for name in IMAGES if name in rows.column_names), None)
    if named is None:
        raise ValueError(f"no column is named like images; the columns are {_names(rows)}: name it by --image-column.")
    kind = f"{kind} (images in {named}, captions in {', '.join(caption_columns)})"
    paths = _paths(rows, named)
    # The rows of one path are one image, at the place of the first; an image may occur in every split.
    key = paths if splits is None else pc.binary_join_element_wise(paths, splits.fill_null(""), "\0")
    image_of = key.dictionary_encode().indices.to_numpy()
    first = np.unique(image_of, return_index=True)[1]
    names = paths.take(pa.array(first)).to_pylist()
    if columns.id:
        ids = _ids(rows, columns, first)
    else:
        ids = pa.array([name.removeprefix(f"{images}/") for name in names], pa.string())
    return Listing(
        kind,
        Files([str(images / name) for name in names]),
        np.arange(len(first)),
        ids,
        _lists(texts, image_of[row_of], len(first)),
        None if splits is None else splits.take(pa.array(first)),
    )


def clean_captions(captions: pa.Array) -> tuple[pa.Array, int]:
    """Replace white space in captions by single spaces, drop empty ones, and count these."""
    texts = captions.flatten()
    owners = pc.list_parent_indices(captions).to_numpy()
    texts = pc.utf8_trim_whitespace(pc.replace_substring_regex(texts.cast(pa.string()), WHITE, " "))
    is_text = pc.fill_null(pc.greater(pc.utf8_length(texts), 0), False)
    cleaned = _lists(texts.filter(is_text), owners[is_text.to_numpy(zero_copy_only=False)], len(captions))
    return cleaned, len(texts) - len(cleaned.values)


def split_of_file(path: Path) -> str | None:
    """Return the name of the split that a file's name starts with."""
    named = SPLIT_NAME.match(path.name)
    return named[1] if named else None


def _lists(texts: pa.Array, owners: Int[np.ndarray, " texts"], count: int) -> pa.ListArray:
    """Collect the texts of each of `count` owners, in order."""
    offsets = np.concatenate([[0], np.cumsum(np.bincount(owners, minlength=count))]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), texts.take(pa.array(np.argsort(owners, kind="stable"))))


def _ids(rows: pa.Table, columns: Columns, first: Int[np.ndarray, " images"]) -> pa.Array:
    """Use the column that is named, or one with a different value for every image; else row numbers."""
    if columns.id is not None:
        return _strings(columns.id, _column(rows, columns.id)).take(pa.array(first))
    for name in IDS:
        if name in rows.column_names and not pa.types.is_nested(rows.schema.field(name).type):
            ids = _strings(name, _column(rows, name)).take(pa.array(first))
            if not ids.null_count and pc.count_distinct(ids).as_py() == len(ids):
                return ids
    return pa.array(map(str, range(len(first))), pa.string())


def _find_caption_columns(rows: pa.Table) -> list[str]:
    if named := next((name for name in CAPTIONS if name in rows.column_names), None):
        return [named]
    if numbered := [name for name in rows.column_names if NUMBERED.fullmatch(name)]:
        return numbered
    raise ValueError(f"no column is named like captions; the columns are {_names(rows)}: name one by --caption-column.")


def _column(rows: pa.Table, name: str) -> pa.Array:
    if rows.column_names.count(name) != 1:
        raise ValueError(f"there is no column {name!r}; the columns are {_names(rows)}.")
    return rows[name].combine_chunks()


def _names(rows: pa.Table) -> str:
    return ", ".join(rows.column_names)


def _paths(rows: pa.Table, name: str) -> pa.Array:
    """Read the paths in a column; Karpathy's `filepath` and `filename` are joined."""
    paths = _strings(name, _column(rows, name))
    if name == "filepath" and "filename" in rows.column_names:
        paths = pc.binary_join_element_wise(paths, _strings("filename", _column(rows, "filename")), "/")
    if paths.null_count:
        row = pc.index(paths.is_null(), True).as_py() + 1
        raise ValueError(f"row {row} (from 1) names no image; fill or remove it.")
    return paths


def _strings(name: str, column: pa.Array) -> pa.Array:
    if pa.types.is_nested(column.type) or pa.types.is_binary(column.type):
        raise ValueError(f"column {name!r} is of {column.type}; it needs one text or number a row.")
    return column.cast(pa.string())


def _texts(rows: pa.Table, name: str) -> tuple[pa.Array, Int[np.ndarray, " texts"]]:
    """Read all texts of a column, and the row of each."""
    column = _unwrap(name, _column(rows, name))
    if not _is_list(column.type):
        texts = _strings(name, column)
        lists = _json_lists(texts)
        if lists is None:
            return texts, np.arange(len(texts))
        column = lists
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
    return _strings(name, _unwrap(name, column.flatten())), np.repeat(np.arange(len(lengths)), lengths)


def _unwrap(name: str, column: pa.Array) -> pa.Array:
    """Take the texts out of records."""
    while pa.types.is_struct(column.type):
        fields = [column.type.field(i).name for i in range(column.type.num_fields)]
        field = next((field for field in TEXT_FIELDS if field in fields), None)
        if field is None:
            needed = f"one of {', '.join(TEXT_FIELDS)} must hold the text"
            raise ValueError(f"column {name!r} has records of {', '.join(fields)}; {needed}.")
        column = column.field(field)
    return column


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _json_lists(texts: pa.Array) -> pa.Array | None:
    """Parse lists written as JSON; None unless all are."""
    if not len(texts) or not pc.all(pc.match_substring_regex(texts.fill_null(""), r"^\s*\[.*\]\s*$")).as_py():
        return None
    try:
        lists = [json.loads(text) for text in texts.to_pylist()]
    except (ValueError, RecursionError):
        return None
    if not all(isinstance(text, str) for texts in lists for text in texts):
        return None
    return pa.array(lists, pa.list_(pa.string()))
