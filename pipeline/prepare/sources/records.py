"""Read the records of a source, whatever their fields are called, as images with captions, ids and splits.

A record may have one caption, a list of them, several fields of them (`caption_0`, `caption_1`, …), or records with the
text in a field `raw`, as Karpathy's files have. A list may be written as text, as JSON, Python or numpy print it.
Records of one path are one image.
"""

from __future__ import annotations

import ast
import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Int

from aoq.pipeline.columns import transpose
from aoq.pipeline.config.dataset import Source
from aoq.pipeline.prepare.sources.images import EncodedImages, ImageFiles
from aoq.pipeline.search.positives import group_offsets

logger = logging.getLogger(__name__)

PATH_FIELDS = ("filepath", "file_path", "image_path", "path", "filename", "file_name", "image_filename", "image_name")
IMAGE_FIELDS = ("image", *PATH_FIELDS, "img")
CAPTION_FIELDS = ("caption", "captions", "sentences", "sentence", "text", "texts", "title", "raw", "comment")
NUMBERED = re.compile(r"(caption|text|sentence)_?\d+$")
ID_FIELDS = ("image_id", "img_id", "imgid", "cocoid", "filename", "file_name", "image_filename", "id", "__key__")
SPLIT = "split"
TEXT_FIELDS = ("raw", "caption", "text", "sentence")
OUR_SPLITS = dict.fromkeys(("dev", "development", "val", "valid", "validate", "validation", "eval"), "dev")
OUR_SPLITS |= {"train": "train", "training": "train", "test": "test", "testing": "test"}
"""Names of our splits, in lower case."""
SPLIT_NAME = re.compile(rf"(?<![A-Za-z])({'|'.join(OUR_SPLITS)})(?![A-Za-z])", re.IGNORECASE)
WHITE = r"[\s\x{0b}\x{1c}-\x{1f}\x{85}\x{2028}\x{2029}]+"
"""White space and all that some programs take for the end of a line: the captions file has one caption per line."""
LIST_BEGINS = re.compile(r"\s*\[\s*(?:['\"\]]|(?:None|null|nan)\b)")
LIST_ITEM = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|None|null|nan""")
EMPTY: tuple[object, ...] = (None, "", [])
HASHED_TEXTS = 1 << 16
SHOWN_BROKEN = 5
"""Records or images that an error names; the log names all."""

Columns = Mapping[str, list[Any] | tuple[pa.Array | pa.ChunkedArray, ...]]
"""Values, or Arrow arrays one after another, each of its own type."""
Records = tuple[str, Columns, "EncodedImages | Path"]
"""What a source is, its raw records, and their images: one per record, or the folder where their paths start."""


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
        total = sha256()
        for texts in [self.ids, self.captions.flatten(), *([] if self.splits is None else [self.splits])]:
            for start in range(0, len(texts), HASHED_TEXTS):
                total.update(json.dumps(texts.slice(start, HASHED_TEXTS).to_pylist()).encode())
        total.update(pc.list_value_length(self.captions).fill_null(0).to_numpy().astype(np.int64).tobytes())
        return total.hexdigest()

    def take(self, places: Int[np.ndarray, " some"]) -> Listing:
        """Select some images, in the order of their places."""
        columns = {name: getattr(self, name) for name in ("ids", "captions", "splits")}
        taken = {name: None if column is None else column.take(pa.array(places)) for name, column in columns.items()}
        return Listing(self.kind, self.images.take(places), **taken)


def read_records(source: Source, kind: str, columns: Columns, images: EncodedImages | Path) -> Listing:
    """List the images of records: one per record, or the files that a column names below a folder."""
    numbered = [name for name in columns if NUMBERED.fullmatch(name)]
    named = [name for name in CAPTION_FIELDS if name in columns and not (numbered and name in ("title", "comment"))][:1]
    caption_fields = [*source.caption_columns] or named + numbered
    if not caption_fields:
        raise ValueError(f"found no caption column among {', '.join(columns)}; name one with --caption-column.")
    texts, row_of = [], []
    for name in caption_fields:
        for row, value in enumerate(column_values(columns, name)):
            captions = [*_texts(value, name, row)]
            texts += captions
            row_of += [row] * len(captions)
    split = source.split_column or (SPLIT if SPLIT in columns else None)
    splits = None if split is None else _strings(columns, split)
    image_of = first = np.arange(len(column_values(columns, caption_fields[0])))
    ids, shown = None, f"captions in {', '.join(caption_fields)}"
    if isinstance(images, Path):
        image_field = source.image_column or next((name for name in IMAGE_FIELDS if name in columns), None)
        if image_field is None:
            raise ValueError(f"found no image column among {', '.join(columns)}; name one with --image-column.")
        shown = f"images in {image_field}, {shown}"
        paths = _paths(columns, image_field)
        # An image takes the place of its first record; it may occur in every split.
        key = paths if splits is None else pc.binary_join_element_wise(paths, splits.fill_null(""), "\0")
        image_of = key.dictionary_encode().indices.to_numpy()
        first = np.unique(image_of, return_index=True)[1]
        names = paths.take(pa.array(first)).to_pylist()
        ids = pa.array([name.removeprefix(f"{images}/") for name in names], pa.string())
        images = ImageFiles([str(images / name) for name in names])
    if ids is None or source.id_column:
        ids = _ids(columns, source.id_column, first)
    splits = None if splits is None else splits.take(pa.array(first))
    captions = _caption_lists(pa.array(texts, pa.string()), image_of[np.array(row_of, np.int64)], len(first))
    return Listing(f"{kind} ({shown})", images, ids, captions, splits)


def clean_captions(listing: Listing) -> Listing:
    """Replace white space in captions by single spaces; leave out empty captions, and images without any."""
    texts = listing.captions.flatten().cast(pa.string())
    texts = pc.utf8_trim_whitespace(pc.replace_substring_regex(texts, WHITE, " "))
    is_text = pc.fill_null(pc.greater(pc.utf8_length(texts), 0), False)
    owners = pc.list_parent_indices(listing.captions).to_numpy()[is_text.to_numpy(zero_copy_only=False)]
    listing = replace(listing, captions=_caption_lists(texts.filter(is_text), owners, len(listing)))
    if empty := len(texts) - len(owners):
        logger.warning("%d empty captions are left out", empty)
    has_captions = np.bincount(owners, minlength=len(listing)) > 0
    if without := int((~has_captions).sum()):
        logger.warning("%d images have no caption and are left out", without)
        listing = listing.take(np.flatnonzero(has_captions))
    if not len(listing):
        raise ValueError(f"{listing.kind}: no image has a caption.")
    return listing


def splits_of_files(paths: Sequence[Path]) -> list[str] | None:
    """Return the split that each file's name contains; None unless there are several, and each has one."""
    names = [named[1] for path in paths if (named := SPLIT_NAME.search(path.stem))]
    if 0 < len(names) < len(paths):
        logger.warning("only %d of %d file names contain a split, so all are ignored", len(names), len(paths))
    return names if len(names) == len(paths) and len({*names}) > 1 else None


def concatenate_splits(parts: Sequence[pa.Table], names: Sequence[str] | None) -> dict[str, Any]:
    """Concatenate the tables of splits, whose names, if there are several, become the column `split`."""
    columns: dict[str, Any] = {}
    for column in dict.fromkeys(column for part in parts for column in part.column_names):
        columns[column] = tuple(part[column] if column in part.column_names else pa.nulls(len(part)) for part in parts)
    if names is not None and SPLIT not in columns:
        columns[SPLIT] = [name for name, part in zip(names, parts, strict=True) for _ in range(len(part))]
    return columns


def image_root(source: Source, folder: Path) -> Path:
    """Return where image paths start: `--images`, or this folder."""
    return Path(source.images or folder).absolute()


def record_columns(records: Sequence[Mapping[str, Any]], source: Source) -> dict[str, list[Any]]:
    """Return the fields of all records as columns; records may name their captions differently."""
    columns = transpose(records)
    usual = [name for name in CAPTION_FIELDS if name in columns]
    if len(usual) > 1 and not source.caption_columns:
        columns[usual[0]] = [next((one[name] for name in usual if one.get(name) not in EMPTY), None) for one in records]
    return columns


def _caption_lists(texts: pa.Array, owners: Int[np.ndarray, " texts"], count: int) -> pa.ListArray:
    offsets = pa.array(group_offsets(np.bincount(owners, minlength=count)), pa.int32())
    return pa.ListArray.from_arrays(offsets, texts.take(pa.array(np.argsort(owners, kind="stable"))))


def _ids(columns: Columns, name: str | None, first: Int[np.ndarray, " images"]) -> pa.Array:
    """Use the field that is named, or one with a different value for every image; else row numbers."""
    if name is not None:
        ids = _strings(columns, name).take(pa.array(first))
        if blank := [row for row, one in enumerate(ids.to_pylist(), start=1) if not (one or "").strip()]:
            raise ValueError(f"column {name!r} has no id for image {blank[0]} (from 1); fill it, or name another one.")
        if twice := len(ids) - pc.count_distinct(ids).as_py():
            logger.warning("%d images have the id of another one in column %r", twice, name)
        return ids
    for name in ID_FIELDS:
        if name in columns and not any(isinstance(value, list | dict) for value in column_values(columns, name)):
            ids = _strings(columns, name).take(pa.array(first))
            if not ids.null_count and pc.count_distinct(ids).as_py() == len(ids):
                return ids
    return pa.array(map(str, range(len(first))), pa.string())


def column_values(columns: Columns, name: str) -> Sequence[Any]:
    """Return a column's values; `caption.en` is the field `en` of the records in `caption`."""
    outer, _, inner = name.partition(".")
    if name not in columns and inner and outer in columns:
        records = column_values(columns, outer)
        if any(isinstance(record, dict) and inner in record for record in records):
            return [record.get(inner) if isinstance(record, dict) else None for record in records]
    if name not in columns:
        raise ValueError(f"there is no column {name!r}; the columns are {', '.join(columns)}.")
    column = columns[name]
    return [value for part in column for value in part.to_pylist()] if isinstance(column, tuple) else column


def _paths(columns: Columns, name: str) -> pa.Array:
    """Read the paths in a field; Karpathy's `filepath` and `filename` are joined."""
    paths = _strings(columns, name)
    if name == "filepath" and "filename" in columns:
        paths = pc.binary_join_element_wise(paths, _strings(columns, "filename"), "/")
    if paths.null_count:
        row = pc.index(paths.is_null(), True).as_py() + 1
        raise ValueError(f"row {row} (from 1) names no image; fill or remove it.")
    return paths


def _strings(columns: Columns, name: str) -> pa.Array:
    return pa.array((_as_text(value, name, row) for row, value in enumerate(column_values(columns, name))), pa.string())


def _as_text(value: Any, name: str, row: int) -> str | None:
    """Return a value as text: a number as it is written, nothing for a missing one."""
    if isinstance(value, list | dict | bytes):
        kind = {list: "a list", dict: f"a record of {', '.join(map(str, value))}"}.get(type(value), "bytes")
        raise ValueError(f"row {row + 1} (from 1) of column {name!r} holds {kind}; it needs one text or number.")
    if value is None or value != value:  # NaN is what pandas writes for a missing text
        return None
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _texts(value: Any, name: str, row: int) -> Iterator[str | None]:
    if isinstance(value, dict):
        field = next((field for field in TEXT_FIELDS if field in value), None)
        if field is None:
            raise ValueError(
                f"row {row + 1} (from 1) of column {name!r} is a record of {', '.join(map(str, value))}; "
                f"name the one with the text, as in --caption-column {name}.{next(iter(value), 'en')}."
            )
        yield from _texts(value[field], name, row)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item, name, row)
    elif isinstance(value, str) and LIST_BEGINS.match(value) and value.rstrip().endswith("]"):
        yield from _texts(_written_list(value, name, row), name, row)
    else:
        yield _as_text(value, name, row)


def _written_list(text: str, name: str, row: int) -> list[Any]:
    with suppress(ValueError, RecursionError):
        if isinstance(items := json.loads(text), list):
            return items
    inside = text.strip()[1:-1]
    with suppress(ValueError, SyntaxError):
        if not LIST_ITEM.sub("", inside).strip(", \t\r\n"):
            return [ast.literal_eval(item) if item[0] in "'\"" else None for item in LIST_ITEM.findall(inside)]
    raise ValueError(
        f"row {row + 1} (from 1) of column {name!r} looks like a list and cannot be read as one: {text[:60]!r}; "
        "write it as JSON."
    )
