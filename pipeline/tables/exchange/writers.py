"""The writer of all formats: a format says which rows, columns and files it has, and this module makes them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from aoq.pipeline.search.positives import group_offsets
from aoq.pipeline.search.problem import blocks
from aoq.pipeline.tables.exchange.outgoing import ENDINGS, PICTURE, ExportRows, Names, Outgoing, Part, is_listed

GROUP_BYTES = 64_000_000
LOOKUP_ROWS, PACKED_ROWS = 2**16, 2**6

Value = Callable[[Outgoing, Names, np.ndarray], "pa.Array | None"]
"""Makes the values of some entries of a side; None if the format has no such column for this side."""


class Lookup(NamedTuple):
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
    one_each: tuple[Part, ...] = ("positives",)
    """Parts of an anchor's group whose entries have a row each."""
    full: bool = False
    """True if all rows need as many negatives as there are places."""
    columns: str = ""
    """Each is NAME=PART.VALUE: a row's anchor, positive, negative or document, or their lists (plurals), by its id or
    another of VALUES; NAME_n is a column for each place. Scores are written if requested, and labels otherwise."""
    path: str = "train.parquet"
    line: Callable[[Outgoing, str, dict[str, Any]], dict[str, Any]] = lambda outgoing, folder, row: row
    """Turns a row into a line of JSON."""
    frame: tuple[str, str, str] = ("", "\n", "\n")
    """Text before, between and after the lines of JSON."""
    lookups: tuple[Lookup, ...] = ()
    write_folder: Callable[[Outgoing, Path], tuple[int, int]] | None = None
    """Writes the folder if the format has neither Parquet nor JSON; returns what `write` returns."""
    finish: Callable[[Outgoing, Path], object] = lambda outgoing, folder: None
    """Writes the folder's further files."""
    images: Literal["path", "lookup", "text", "id"] = "path"
    """Form of an image: its path; a row of a lookup, by path or content; only a text; or its id."""
    needs_endings: bool = False
    """True if its reader recognises a picture by the ending of its path."""
    placeholders: tuple[str, ...] = ()
    """Strings that its reader replaces, as by a picture, so that no text may have them."""
    queries: Literal["any", "text"] = "any"
    """Anchors that its reader accepts."""
    scores: Literal["optional", "always", "never", "of negatives"] = "never"
    scores_are_for: str = "distillation"
    """Named in the README as what reads the scores of positives and negatives: losses or an option."""
    directions: Literal["one", "each", "joined"] = "one"
    """One requested direction; both in turn; or both at once: the captions' lists, with the images' as `other`."""

    @property
    def has_texts(self) -> bool:
        """Return whether it has texts and positives, not rows alone."""
        return self.images != "id"

    def write(self, outgoing: Outgoing, folder: Path) -> tuple[int, int]:
        """Write the folder of one direction.

        Return the number of rows (lines), and of anchors that are left out because they lack entries that a row needs.
        """
        if self.write_folder is not None:
            return self.write_folder(outgoing, folder)
        sides = {"anchors": outgoing.anchors, "candidates": outgoing.candidates}
        for side in sides.values():
            self._require_readable(side)
        folder.mkdir()
        for lookup in self.lookups:
            _write_lookup(folder, lookup, sides[lookup.side])
        left_out = len(outgoing.anchors.ids)

        def tables() -> Iterator[pa.Table]:
            nonlocal left_out
            for block in outgoing.rows():
                rows = block.one_each(self.one_each, full=self.full)
                left_out -= len(np.unique(rows.anchors["row"]))
                yield _make_table(self.columns, rows, outgoing)

        if self.path.endswith(".parquet"):
            count = _write_parquet(folder / self.path, tables())
        else:
            lines = (self.line(outgoing, folder.name, row) for table in tables() for row in table.to_pylist())
            count = _write_json(folder / self.path, lines, self.frame)
        self.finish(outgoing, folder)
        return count, left_out

    def _require_readable(self, side: Names) -> None:
        """Refuse pictures and texts that the reader of this format would take for something else."""
        for row, value in enumerate(side.values):
            if side.are_pictures and self.needs_endings and not value.lower().endswith(ENDINGS):
                raise ValueError(
                    f"{value} does not end like an image ({', '.join(ENDINGS)}), so the reader of this format would "
                    "take its path for text; rename the files, or choose the format ids."
                )
            placeholder = next((one for one in self.placeholders if one in value), None)
            if placeholder is not None and not side.are_pictures:
                raise ValueError(
                    f"the text of {side.noun} {row} has {placeholder!r}, which the reader of this format replaces; "
                    "remove it from the text, or choose another format."
                )


MMEB_QUERY = "<|image_1|> Find an image caption describing the given image."
QUESTION = "Find me an everyday image that matches the given caption: "
DOCUMENT = "<|image_1|> Represent the given image."


def _query(outgoing: Outgoing, side: Names, entries: np.ndarray) -> pa.Array:
    """Make MMEB's text of an anchor; for a picture it has a token in the picture's place."""
    before = QUESTION if outgoing.candidates.are_pictures else ""
    texts = (MMEB_QUERY if side.are_pictures else before + side.values[row] for row in entries["row"].tolist())
    return pa.array(texts, pa.large_string())


def _values_or(text: str, *, of_pictures: bool) -> Value:
    """Take paths, or texts, and `text` for each row of a side that has none."""

    def take(_: Outgoing, side: Names, entries: np.ndarray) -> pa.Array:
        if side.are_pictures == of_pictures:
            return side.value_column.take(entries["row"])
        return pa.array([text] * len(entries), pa.large_string())

    return take


VALUES: dict[str, Value] = {
    "id": lambda _, side, entries: side.id_column.take(entries["row"]),
    "value": lambda _, side, entries: side.value_column.take(entries["row"]),
    "number": lambda _, __, entries: pa.array(entries["row"], pa.int64()),
    "score": lambda outgoing, _, entries: pa.array(entries["score"]) if outgoing.scored else None,
    "label": lambda outgoing, _, entries: None if outgoing.scored else pa.array(entries["label"]),
    "text": _values_or("", of_pictures=False),
    "path": _values_or("", of_pictures=True),
    "picture": lambda _, side, entries: side.shown(entries["row"].tolist()) if side.are_pictures else None,
    "query": _query,
    "document": _values_or(DOCUMENT, of_pictures=False),
}


def _make_table(columns: str, rows: ExportRows, outgoing: Outgoing) -> pa.Table:
    arrays: dict[str, pa.Array] = {}
    for name, _, source in (column.partition("=") for column in columns.split()):
        part, _, value = source.partition(".")
        side = outgoing.anchors if part == "anchor" else outgoing.candidates
        entries = getattr(rows, part.removesuffix("s") + "s")
        if name.endswith("_n"):
            for place, column in enumerate(entries.T, start=1):
                arrays[f"{name[:-1]}{place}"] = VALUES[value](outgoing, side, column)
        elif (array := VALUES[value](outgoing, side, entries[is_listed(entries)])) is not None:
            offsets = group_offsets(is_listed(entries).sum(axis=1))
            arrays[name] = pa.ListArray.from_arrays(offsets, array) if part.endswith("s") else array
    return pa.table(arrays)


def _write_lookup(folder: Path, lookup: Lookup, side: Names) -> None:
    """Write each row's id, if there is a column for it, and its text or picture."""
    id_column, value_column = lookup.ids[side.are_pictures], lookup.values[side.are_pictures]

    def tables() -> Iterator[pa.Table]:
        for start, stop in blocks(len(side.ids), PACKED_ROWS if side.packed else LOOKUP_ROWS):
            ids = {} if id_column is None else {id_column.format(noun=side.noun): side.id_column[start:stop]}
            yield pa.table({**ids, value_column: side.shown(range(start, stop))})

    _write_parquet(folder / lookup.path.format(noun=side.noun), tables())


def _write_parquet(path: Path, tables: Iterator[pa.Table]) -> int:
    """Write tables of one schema to a Parquet file, in row groups of about 64 MB; return the number of rows."""
    first = next(tables)
    features = {field.name: {"_type": "Image"} for field in first.schema if field.type == PICTURE}
    schema = first.schema.with_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    path.parent.mkdir(parents=True, exist_ok=True)
    count = 0
    waiting: list[pa.Table] = []
    with pq.ParquetWriter(path, schema, compression="zstd", write_page_checksum=True) as writer:
        for table in chain([first], tables, [None]):  # None writes what is left
            if waiting and (table is None or sum(one.nbytes for one in waiting) >= GROUP_BYTES):
                group = pa.concat_tables(waiting)
                writer.write_table(group, row_group_size=max(1, len(group)))
                count, waiting = count + len(group), []
            waiting.append(table)
    return count


def _write_json(path: Path, lines: Iterator[Mapping[str, Any]], frame: tuple[str, str, str]) -> int:
    """Write an object per line between the head and the tail of the frame; return the number of lines."""
    head, separator, tail = frame
    count = 0
    with path.open("w", encoding="utf-8") as file:
        file.write(head)
        for count, line in enumerate(lines, start=1):
            file.write((separator if count > 1 else "") + json.dumps(line, ensure_ascii=False))
        file.write(tail)
    return count
