"""Files of matching pairs, by row or by id, graded or not.

    .npy                           an integer per caption, its image's row (-1: none); or (n, 2) rows (image, caption)
    .parquet, .csv, .tsv, .jsonl   a row per pair: two of COLUMNS, and one of GRADES if pairs are graded
    .qrels, .trec, .txt            TREC's judgements, `query 0 document grade` per line; also a .tsv without a header

Pairs may be many-to-many. Graded pairs are positives from the least grade on. Pairs below it were judged not to match;
they are candidates like pairs that nobody judged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from jaxtyping import Bool, Float64, Int64, Integer

from aoq.pipeline.columns import csv_columns, fitted, open_parquet, parse_csv, parse_json_lines, read_parquet
from aoq.pipeline.reading import open_array, reading
from aoq.pipeline.tables.rows import rows_by_id

COLUMNS = (("image_id", "caption_id"), ("query_id", "document_id"), ("query-id", "corpus-id"), ("left", "right"))
GRADES = ("grade", "score")
LEAST_GRADE = 1.0
JUDGEMENTS = (".qrels", ".trec", ".txt")
REMEDY = (
    "it needs two columns, "
    + " or ".join(" and ".join(pair) for pair in COLUMNS)
    + ", of rows, or of ids that --image-ids and --caption-ids name"
)

Column = Sequence[str] | Integer[np.ndarray, " pairs"]
Columns = tuple[Column, Column, Float64[np.ndarray, " pairs"] | None]
"""Both sides of each pair, as rows or ids, and its grade."""


@dataclass(frozen=True)
class Known:
    """Facts about a side that pairs refer to: the name of a row, the number of rows, and their ids."""

    noun: str
    count: int | None = None
    ids: Sequence[str] | None = None


def read_pairs(
    path: Path, images: Known, captions: Known, least_grade: float | None = None
) -> Integer[np.ndarray, "*shape"]:
    """Read the positive pairs, rows (image, caption), or the image of each caption from a .npy vector.

    Raises:
        ValueError: for an unknown id or row, a grade that is not a number, or if no pair is left.
    """
    if path.suffix == ".npy":
        _require_grades(path, None, least_grade)
        return _array(path)
    if path.suffix not in (*READERS, *JUDGEMENTS):
        raise ValueError(
            f"{path} should say who belongs to whom, in one of .npy, {', '.join((*READERS, *JUDGEMENTS))}."
        )
    read = _judgements if path.suffix in JUDGEMENTS or _has_no_header(path) else _columns
    left, right, grades = read(path, images.ids is not None, captions.ids is not None)
    kept = _kept(path, grades, least_grade, len(left))
    rows = [_rows(path, side, column) for side, column in ((images, left), (captions, right))]
    return np.stack(rows, axis=1)[kept]


def _array(path: Path) -> Integer[np.ndarray, "*shape"]:
    found = open_array(path)
    is_pairs = found.ndim == 2 and found.shape[1] == 2
    if not (is_pairs or found.ndim == 1) or not np.issubdtype(found.dtype, np.integer):
        raise ValueError(
            f"{path} holds {found.dtype} of shape {found.shape}; an integer a caption is needed, its image's row, or "
            "(n, 2) rows (image, caption)."
        )
    return found


def _has_no_header(path: Path) -> bool:
    """Return whether a .tsv begins like TREC's judgements: four fields, the last of which is a number."""
    if path.suffix != ".tsv":
        return False
    with reading(path, "a text file"), path.open(encoding="utf-8") as file:
        fields = file.readline().split()
    return len(fields) == 4 and _is_number(fields[3])


def _judgements(path: Path, *_: bool) -> Columns:
    queries, documents, grades = [], [], []
    with reading(path, "a text file"), path.open(encoding="utf-8") as file:
        lines = file.read().splitlines()
    for number, line in enumerate(lines, start=1):
        fields = line.split()
        if len(fields) != 4:
            said = f"{path}:{number}: {len(fields)} fields where judgements have 4: query 0 document grade."
            are_ids = " Ids, one a line, go by --image-ids and --caption-ids; --pairs says who belongs to whom."
            raise ValueError(said + are_ids * (len(fields) == 1))
        if not _is_number(fields[3]):
            raise ValueError(f"{path}:{number}: the grade {fields[3]!r} is not a number.")
        queries.append(fields[0])
        documents.append(fields[2])
        grades.append(float(fields[3]))
    return queries, documents, np.array(grades)


def _is_number(text: str) -> bool:
    try:
        return bool(np.isfinite(float(text)))
    except ValueError:
        return False


def _columns(path: Path, *have_ids: bool) -> Columns:
    with reading(path, "pairs", REMEDY):
        names, read = READERS[path.suffix](path)
        found = [pair for pair in COLUMNS if set(pair) <= set(names)]
        if len(found) != 1:
            raise ValueError(f"its columns are {list(names)}")
        grade = next((name for name in GRADES if name in names), None)
        kinds: dict[str, Any] = {
            name: pa.string() if has_ids and not pa.types.is_integer(names[name]) else pa.int64()
            for name, has_ids in zip(found[0], have_ids, strict=True)
        }
        table = read(pa.schema(kinds | ({grade: pa.float64()} if grade else {})))
    left, right = (
        table[name].to_pylist() if kinds[name] == pa.string() else table[name].to_numpy() for name in found[0]
    )
    return left, right, table[grade].to_numpy() if grade else None


def _parquet(path: Path) -> tuple[Mapping[str, pa.DataType], Callable[[pa.Schema], pa.Table]]:
    with open_parquet(path) as file:
        schema = file.file.schema_arrow
    return {field.name: field.type for field in schema}, lambda columns: read_parquet(path, columns)


def _csv(path: Path, delimiter: str) -> tuple[Mapping[str, pa.DataType], Callable[[pa.Schema], pa.Table]]:
    """Read every column of a CSV file as text: an id 007 is not a number."""
    names = csv_columns(path, delimiter=delimiter)
    return dict.fromkeys(names, pa.string()), lambda columns: parse_csv(path, columns, delimiter=delimiter)


def _json_lines(path: Path) -> tuple[Mapping[str, pa.DataType], Callable[[pa.Schema], pa.Table]]:
    table = parse_json_lines(path)
    return {field.name: field.type for field in table.schema}, lambda columns: fitted(table, columns)


READERS = {
    ".parquet": _parquet,
    ".csv": lambda path: _csv(path, ","),
    ".tsv": lambda path: _csv(path, "\t"),
    ".jsonl": _json_lines,
}
"""Columns of each file type, and readers of some of them."""


def _kept(
    path: Path, grades: Float64[np.ndarray, " pairs"] | None, least: float | None, pairs: int
) -> Bool[np.ndarray, " pairs"]:
    _require_grades(path, grades, least)
    if not pairs:
        raise ValueError(f"{path} has no pair; give --unpaired where no caption belongs to any image.")
    if grades is None:
        return np.ones(pairs, dtype=np.bool_)
    if len(wrong := np.flatnonzero(~np.isfinite(grades))):
        raise ValueError(f"{path}: the grade of pair {wrong[0]} is not a number.")
    least = LEAST_GRADE if least is None else least
    if not (kept := grades >= least).any():
        raise ValueError(
            f"{path}: no pair has a grade of at least {least:g}, the highest is {grades.max():g}; lower --min-grade."
        )
    return kept


def _require_grades(path: Path, grades: Any, least: float | None) -> None:
    if grades is None and least is not None:
        raise ValueError(f"{path} has no grades, so that all its pairs are positives; leave out --min-grade.")


def _rows(path: Path, side: Known, column: Column) -> Int64[np.ndarray, " pairs"]:
    """Turn ids or row numbers into rows; each must exist."""
    if side.ids is not None:
        found = rows_by_id(side.ids, side.noun)
        rows = np.array([found.get(str(name), -1) for name in column], dtype=np.int64)
        there = f"which is none of the {len(found)} ids of {side.noun}s; pairs of rows go into a .npy file"
    else:
        if wrong := [name for name in column if isinstance(name, str) and not _is_row(name)]:
            raise ValueError(
                f"{path}: {wrong[0]!r} is no row number; give --{side.noun}-ids where {side.noun}s go by ids."
            )
        rows = np.array(column if isinstance(column, np.ndarray) else [int(name) for name in column], dtype=np.int64)
        there = f"and there are {side.noun}s 0 to {(side.count or 0) - 1}"
    missing = (rows < 0) | (rows >= (np.inf if side.count is None else side.count))
    if missing.any():
        pair = int(missing.argmax())
        raise ValueError(f"{path}: pair {pair} names {side.noun} {str(column[pair])!r}, {there}.")
    return rows


def _is_row(name: str) -> bool:
    return name.isascii() and name.isdecimal() and len(name) < 10
