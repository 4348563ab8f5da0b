"""The writer of all formats: a format says which rows, columns and files it has, and this module makes them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from aoq.pipeline.search.positives import offsets_of
from aoq.pipeline.tables.exchange.outgoing import Documents, ExportRows, Names, Outgoing, pairs
from aoq.pipeline.tables.exchange.pictures import PICTURE, picture_column, require_endings, slices

GROUP_BYTES = 64_000_000
LOOKUP_ROWS = 2**16

Value = Callable[[Outgoing, Names, np.ndarray], "pa.Array | None"]
"""Makes the values of some rows of a side; None if the format has no such column for this side."""
_Line = Callable[[Outgoing, str, dict[str, Any]], dict[str, Any]]


@dataclass(frozen=True)
class Lookup:
    """A table with the text or picture of each id of one side."""

    path: str
    side: Literal["anchors", "candidates"]
    ids: tuple[str | None, str | None]
    """Column of the ids if the side has texts, and if it has pictures."""
    values: tuple[str, str] = ("text", "image")


@dataclass(frozen=True)
class Format:
    """A format: a row of the table in `formats`."""

    load: str
    """Lines of its README that load it; `$folder` is replaced by the folder's name."""
    language: Literal["python", "bash", "yaml"] = "python"
    rows: Callable[[ExportRows], ExportRows] = pairs
    columns: str = ""
    """Each is NAME=PART.VALUE: a row's anchor, positive, negative or document, or their lists (plurals), by its id or
    another of VALUES; NAME_n is a column for each place. Labels are written without scores, and scores if requested."""
    path: str = "train.parquet"
    line: _Line = lambda outgoing, folder, row: row
    """Turns a row into a line of JSON."""
    frame: tuple[str, str, str] = ("", "\n", "\n")
    """Text before, between and after the lines of JSON."""
    lookups: tuple[Lookup, ...] = ()
    write_folder: Callable[[Outgoing, Path], tuple[int, int]] | None = None
    """Writes the folder if the format has neither Parquet nor JSON; returns what `write` returns."""
    finish: Callable[[Outgoing, Path], object] = lambda outgoing, folder: None
    """Writes what else the folder needs."""
    images: Literal["path", "lookup", "text", "id"] = "path"
    """Form of an image: its path; a row of a lookup, by path or content; a text alone; or its id."""
    needs_endings: bool = False
    """True if its reader recognises a picture by the ending of its path."""
    placeholders: tuple[str, ...] = ()
    """Strings that its reader replaces, as by a picture, so that no text may have them."""
    queries: Literal["any", "text"] = "any"
    """Anchors that its reader accepts."""
    scores: Literal["optional", "always", "never", "of negatives"] = "never"
    scores_are_for: str = "distillation"
    """What reads the scores of positives and negatives, named in the README."""
    directions: Literal["one", "each", "joined"] = "one"
    """One requested direction; both in turn; or both at once: the captions' lists, with the images' as `other`."""

    @property
    def has_texts(self) -> bool:
        """Return whether it has texts and positives; otherwise it has rows alone."""
        return self.images != "id"

    def write(self, outgoing: Outgoing, folder: Path) -> tuple[int, int]:
        """Write the folder of one direction.

        Return the number of rows (lines), and of anchors that are left out because they lack what a row needs.
        """
        if self.write_folder is not None:
            return self.write_folder(outgoing, folder)
        sides = {"anchors": outgoing.anchors, "candidates": outgoing.candidates}
        for side in sides.values():
            if self.needs_endings and side.are_pictures:
                require_endings(side.values)
            for row, text in enumerate([] if side.are_pictures else side.values):
                if placeholder := next((one for one in self.placeholders if one in text), None):
                    raise ValueError(
                        f"the text of {side.noun} {row} has {placeholder!r}, which the reader of this format replaces; "
                        "remove it from the text, or choose another format."
                    )
        folder.mkdir()
        for lookup in self.lookups:
            _write_lookup(folder, lookup, sides[lookup.side], packed=outgoing.packed)
        left_out = len(outgoing.anchors.ids)

        def tables() -> Iterator[pa.Table]:
            nonlocal left_out
            for block in outgoing.rows():
                rows = self.rows(block)
                left_out -= len(np.unique(rows.anchors))
                yield _make_table(self.columns, rows, outgoing)

        if self.path.endswith(".parquet"):
            count = _write_parquet(folder / self.path, tables())
        else:
            lines = (self.line(outgoing, folder.name, row) for table in tables() for row in table.to_pylist())
            count = _write_json(folder / self.path, lines, self.frame)
        self.finish(outgoing, folder)
        return count, left_out


MMEB_QUERY = "<|image_1|> Find an image caption describing the given image."
QUESTION = "Find me an everyday image that matches the given caption: "
DOCUMENT = "<|image_1|> Represent the given image."


def _picture(outgoing: Outgoing, side: Names, rows: np.ndarray) -> pa.Array | None:
    if not side.are_pictures:
        return None
    return picture_column([side.values[row] for row in rows.tolist()], packed=outgoing.packed)


def _query(outgoing: Outgoing, side: Names, rows: np.ndarray) -> pa.Array:
    """Make MMEB's text of an anchor; a picture's has a token in the picture's place."""
    before = QUESTION if outgoing.candidates.are_pictures else ""
    texts = [MMEB_QUERY if side.are_pictures else before + side.values[row] for row in rows.tolist()]
    return pa.array(texts, pa.large_string())


def _texts_or(text: str, of_pictures: bool, kind: pa.DataType) -> Value:
    """Take texts, or paths, and `text` for each row of a side that has none."""

    def take(_: Outgoing, side: Names, rows: np.ndarray) -> pa.Array:
        has_none = side.are_pictures == of_pictures
        return pa.array([text] * len(rows), kind) if has_none else side.value_column.take(rows)

    return take


VALUES: dict[str, Value] = {
    "id": lambda _, side, rows: side.id_column.take(rows),
    "value": lambda _, side, rows: side.value_column.take(rows),
    "number": lambda _, __, rows: pa.array(rows, pa.int64()),
    "text": _texts_or("", True, pa.string()),
    "path": _texts_or("", False, pa.large_string()),
    "picture": _picture,
    "query": _query,
    "document": _texts_or(DOCUMENT, True, pa.large_string()),
}


def _make_table(columns: str, rows: ExportRows, outgoing: Outgoing) -> pa.Table:
    """Make the columns of some rows."""
    made: dict[str, pa.Array] = {}
    for name, _, source in (column.partition("=") for column in columns.split()):
        part, _, value = source.partition(".")
        if not value:
            if name.startswith("label") != outgoing.scored:
                made[name] = _labels_or_scores(source or name, rows)
        elif name.endswith("_n"):
            for place, numbers in enumerate(rows.negatives.T, start=1):
                made[f"{name[:-1]}{place}"] = VALUES[value](outgoing, outgoing.candidates, numbers)
        else:
            is_anchor = part == "anchor"
            side = outgoing.anchors if is_anchor else outgoing.candidates
            documents = rows.anchors[:, None] if is_anchor else getattr(rows, part.removesuffix("s") + "s")
            array = VALUES[value](outgoing, side, documents[documents >= 0])
            if array is not None:
                made[name] = _list_array(array, documents) if part.endswith("s") else array
    return pa.table(made)


def _labels_or_scores(part: str, rows: ExportRows) -> pa.Array:
    """Make one for each document, as a list if the name is a plural."""
    documents = {"positive_scores": rows.positives, "negative_scores": rows.negatives}.get(part, rows.documents)
    if part.startswith("label"):
        array = pa.array((np.nonzero(documents >= 0)[1] < rows.positives.shape[1]).astype(np.int64))
    else:
        array = pa.array(getattr(rows, part.removesuffix("s") + "s")[documents >= 0])
    return _list_array(array, documents) if part.endswith("s") else array


def _list_array(items: pa.Array, documents: Documents) -> pa.ListArray:
    return pa.ListArray.from_arrays(offsets_of((documents >= 0).sum(axis=1)), items)


def _write_lookup(folder: Path, lookup: Lookup, side: Names, *, packed: bool) -> None:
    """Write each row's id, if there is a column for it, and its text or picture."""
    id_column, value_column = lookup.ids[side.are_pictures], lookup.values[side.are_pictures]

    def tables() -> Iterator[pa.Table]:
        for part in slices(side.values if packed and side.are_pictures else [], len(side.ids), LOOKUP_ROWS):
            ids = {} if id_column is None else {id_column.format(noun=side.noun): side.id_column[part]}
            is_picture = side.are_pictures
            values = picture_column(side.values[part], packed=packed) if is_picture else side.value_column[part]
            yield pa.table({**ids, value_column: values})

    _write_parquet(folder / lookup.path.format(noun=side.noun), tables())


def _write_parquet(path: Path, tables: Iterable[pa.Table]) -> int:
    """Write tables of one schema to a Parquet file, in row groups of about 64 MB; return the number of rows."""
    groups = _groups(tables)
    first = next(groups)
    features = {field.name: {"_type": "Image"} for field in first.schema if field.type == PICTURE}
    schema = first.schema.with_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    path.parent.mkdir(parents=True, exist_ok=True)
    with pq.ParquetWriter(path, schema, compression="zstd", write_page_checksum=True) as writer:
        for group in chain([first], groups):
            writer.write_table(group, row_group_size=max(1, len(group)))
    return int(pq.read_metadata(path).num_rows)


def _groups(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    waiting: list[pa.Table] = []
    for table in tables:
        waiting.append(table)
        if sum(one.nbytes for one in waiting) >= GROUP_BYTES:
            yield pa.concat_tables(waiting)
            waiting = []
    if waiting:
        yield pa.concat_tables(waiting)


def _write_json(path: Path, lines: Iterable[Mapping[str, Any]], frame: tuple[str, str, str]) -> int:
    """Write an object per line between the head and the tail of the frame; return the number of lines."""
    head, separator, tail = frame
    count = 0
    with path.open("w", encoding="utf-8") as file:
        file.write(head)
        for count, line in enumerate(lines, start=1):
            file.write((separator if count > 1 else "") + json.dumps(line, ensure_ascii=False))
        file.write(tail)
    return count
