"""Read the records of a source, whatever their fields are called, as images with captions, ids and splits.

A record may have one caption, a list of them, several fields of them (`caption_0`, `caption_1`, …), or records with the
text in a field `raw`, as Karpathy's files have; a list may also be a JSON text. Records of one path are one image.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Int

from aoq.pipeline.prepare.sources.images import EncodedImages, ImageFiles

logger = logging.getLogger(__name__)

PATH_FIELDS = ("filepath", "file_path", "image_path", "path", "filename", "file_name", "image_filename")
IMAGE_FIELDS = ("image", *PATH_FIELDS, "img")
CAPTION_FIELDS = ("caption", "captions", "sentences", "sentence", "text", "texts", "title", "raw")
NUMBERED = re.compile(r"(caption|text|sentence)_?\d+$")
ID_FIELDS = ("image_id", "img_id", "imgid", "cocoid", "filename", "file_name", "image_filename", "id", "__key__")
SPLIT = "split"
TEXT_FIELDS = ("raw", "caption", "text", "sentence")
SPLIT_NAME = re.compile(r"(train|training|val|valid|validation|dev|test)(?=[^A-Za-z]|$)")
WHITE = r"[\s\x{0b}\x{1c}-\x{1f}\x{85}\x{2028}\x{2029}]+"
"""White space and anything that some programs take for the end of a line: the captions file has one caption a line."""
HASHED_TEXTS = 1 << 16


@dataclass(frozen=True)
class Fields:
    """The fields that the user names; those that are None are found by their usual names."""

    image: str | None = None
    captions: tuple[str, ...] = ()
    id: str | None = None
    split: str | None = None


class Records(NamedTuple):
    """Raw records of a source, and their images: one per record, or the folder where their paths start."""

    kind: str
    rows: pa.Table
    images: EncodedImages | Path
    fields: Fields


@dataclass(frozen=True)
class Listing:
    """Images in order, with their captions (lists of texts), ids and, if the source has splits, the names of these."""

    kind: str
    images: EncodedImages
    ids: pa.Array
    captions: pa.Array
    splits: pa.Array | None

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def texts_sha256(self) -> str:
        """Hash ids, captions and splits."""
        total = sha256()
        for texts in [self.ids, self.captions.flatten(), *([] if self.splits is None else [self.splits])]:
            for start in range(0, len(texts), HASHED_TEXTS):
                total.update(json.dumps(texts.slice(start, HASHED_TEXTS).to_pylist()).encode())
        total.update(pc.list_value_length(self.captions).fill_null(0).to_numpy().astype(np.int64).tobytes())
        return total.hexdigest()

    def take(self, places: Int[np.ndarray, " some"]) -> Listing:
        """Select some images, in the order of their places."""
        at = pa.array(places)
        splits = None if self.splits is None else self.splits.take(at)
        ids, captions = self.ids.take(at), self.captions.take(at)
        return Listing(self.kind, self.images.take(places), ids, captions, splits)


def read_records(records: Records) -> Listing:
    """List the images of records."""
    kind, rows, images, fields = records
    caption_fields = list(fields.captions) or _caption_fields(rows)
    parts, owners = zip(*(_texts(rows, name) for name in caption_fields), strict=True)
    texts, row_of = pa.concat_arrays(parts), np.concatenate(owners)
    split = fields.split or (SPLIT if SPLIT in rows.column_names else None)
    splits = None if split is None else _strings(rows, split)
    image_of = first = np.arange(len(rows))
    ids = None
    if isinstance(images, Path):
        named = fields.image or next((name for name in IMAGE_FIELDS if name in rows.column_names), None)
        if named is None:
            raise ValueError(
                f"no column is named like images; the columns are {_names(rows)}: name it by --image-column."
            )
        kind = f"{kind} (images in {named}, captions in {', '.join(caption_fields)})"
        paths = _paths(rows, named)
        # An image stands at the place of its first record; it may occur in every split.
        key = paths if splits is None else pc.binary_join_element_wise(paths, splits.fill_null(""), "\0")
        image_of = key.dictionary_encode().indices.to_numpy()
        first = np.unique(image_of, return_index=True)[1]
        names = paths.take(pa.array(first)).to_pylist()
        ids = pa.array([name.removeprefix(f"{images}/") for name in names], pa.string())
        images = ImageFiles([str(images / name) for name in names])
    if ids is None or fields.id:
        ids = _ids(rows, fields.id, first)
    splits = None if splits is None else splits.take(pa.array(first))
    return Listing(kind, images, ids, _lists(texts, image_of[row_of], len(first)), splits)


def clean_captions(listing: Listing) -> Listing:
    """Replace white space in captions by single spaces; leave out empty captions, and images without any."""
    texts = listing.captions.flatten().cast(pa.string())
    texts = pc.utf8_trim_whitespace(pc.replace_substring_regex(texts, WHITE, " "))
    is_text = pc.fill_null(pc.greater(pc.utf8_length(texts), 0), False)
    owners = pc.list_parent_indices(listing.captions).to_numpy()[is_text.to_numpy(zero_copy_only=False)]
    listing = replace(listing, captions=_lists(texts.filter(is_text), owners, len(listing)))
    if empty := len(texts) - len(owners):
        logger.warning("%d empty captions are left out", empty)
    has_captions = np.bincount(owners, minlength=len(listing)) > 0
    if without := int((~has_captions).sum()):
        logger.warning("%d images have no caption and are left out", without)
        listing = listing.take(np.flatnonzero(has_captions))
    if not len(listing):
        raise ValueError(f"{listing.kind}: no image has a caption.")
    return listing


def split_of_file(path: Path) -> str | None:
    """Return the name of the split that a file's name starts with."""
    named = SPLIT_NAME.match(path.name)
    return named[1] if named else None


def concatenate_splits(parts: Sequence[pa.Table], names: Sequence[str | None]) -> pa.Table:
    """Concatenate the tables of splits; their names become the column `split`, unless one is unknown or all are one."""
    if None not in names and len(set(names)) > 1:
        columns = (pa.array([name] * len(part), pa.string()) for name, part in zip(names, parts, strict=True))
        parts = [
            part if SPLIT in part.column_names else part.append_column(SPLIT, column)
            for part, column in zip(parts, columns, strict=True)
        ]
    return pa.concat_tables(parts, promote_options="default")


def _lists(texts: pa.Array, owners: Int[np.ndarray, " texts"], count: int) -> pa.ListArray:
    """Collect the texts of each of `count` owners, in order."""
    offsets = np.concatenate([[0], np.cumsum(np.bincount(owners, minlength=count))]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), texts.take(pa.array(np.argsort(owners, kind="stable"))))


def _ids(rows: pa.Table, name: str | None, first: Int[np.ndarray, " images"]) -> pa.Array:
    """Use the field that is named, or one with a different value for every image; else row numbers."""
    if name is not None:
        return _strings(rows, name).take(pa.array(first))
    for name in ID_FIELDS:
        if name in rows.column_names and not pa.types.is_nested(rows.schema.field(name).type):
            ids = _strings(rows, name).take(pa.array(first))
            if not ids.null_count and pc.count_distinct(ids).as_py() == len(ids):
                return ids
    return pa.array(map(str, range(len(first))), pa.string())


def _caption_fields(rows: pa.Table) -> list[str]:
    if named := next((name for name in CAPTION_FIELDS if name in rows.column_names), None):
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
    """Read the paths in a field; Karpathy's `filepath` and `filename` are joined."""
    paths = _strings(rows, name)
    if name == "filepath" and "filename" in rows.column_names:
        paths = pc.binary_join_element_wise(paths, _strings(rows, "filename"), "/")
    if paths.null_count:
        row = pc.index(paths.is_null(), True).as_py() + 1
        raise ValueError(f"row {row} (from 1) names no image; fill or remove it.")
    return paths


def _strings(rows: pa.Table, name: str) -> pa.Array:
    return _as_strings(name, _column(rows, name))


def _as_strings(name: str, column: pa.Array) -> pa.Array:
    if pa.types.is_nested(column.type) or pa.types.is_binary(column.type):
        raise ValueError(f"column {name!r} is of {column.type}; it needs one text or number a row.")
    return column.cast(pa.string())


def _texts(rows: pa.Table, name: str) -> tuple[pa.Array, Int[np.ndarray, " texts"]]:
    column = _unwrap(name, _column(rows, name))
    if not _is_list(column.type):
        texts = _as_strings(name, column)
        lists = _json_lists(texts)
        if lists is None:
            return texts, np.arange(len(texts))
        column = lists
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
    return _as_strings(name, _unwrap(name, column.flatten())), np.repeat(np.arange(len(lengths)), lengths)


def _unwrap(name: str, column: pa.Array) -> pa.Array:
    while pa.types.is_struct(column.type):
        names = column.type.names
        field = next((field for field in TEXT_FIELDS if field in names), None)
        if field is None:
            needed = f"one of {', '.join(TEXT_FIELDS)} must hold the text"
            raise ValueError(f"column {name!r} has records of {', '.join(names)}; {needed}.")
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
