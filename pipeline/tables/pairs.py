"""Pairs of an image and a caption: as rows, as keys for look-ups, grouped by anchor, and in files that users name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np
import pyarrow as pa
from jaxtyping import Bool, Float64, Int32, Int64, Integer

from aoq.pipeline.columns import open_columns
from aoq.pipeline.data.files import read_lines
from aoq.pipeline.extras import is_hub_name
from aoq.pipeline.reading import open_array, read_utf8, reading
from aoq.pipeline.search.positives import Positives
from aoq.pipeline.search.problem import Direction
from aoq.pipeline.vector_files import COLUMNED, VectorFile

Pairs = Int32[np.ndarray, "pairs 2"]
"""Rows (image, caption)."""
TWO_SIDES = ("images", "captions")
SIDES: Mapping[Direction, tuple[str, str]] = {"i2t": ("images", "captions"), "t2i": ("captions", "images")}
"""Names of the anchors and of the candidates of a direction."""
ID_COUNT = 2**32
"""A bound above all ids of one side."""


def pairs_sha256(pairs: Pairs) -> str:
    """Hash the rows (image, caption), little-endian, independent of the layout of a file."""
    return sha256(np.ascontiguousarray(pairs, "<i4").tobytes()).hexdigest()


def pairing_sha256(pairs: Pairs, captions: int) -> str:
    """Hash data known only by its pairs: each caption's image, or all pairs if a caption has several images."""
    if np.bincount(pairs[:, 1], minlength=1).max() > 1:
        return pairs_sha256(pairs)
    image_of = np.full(captions, -1, "<i4")
    image_of[pairs[:, 1]] = pairs[:, 0]
    return sha256(image_of.tobytes()).hexdigest()


def group_positives(direction: Direction, pairs: Pairs, anchors: int) -> Positives:
    """Group positives by anchor, rising: the captions of images (i2t) or the images of captions (t2i)."""
    own, other = pairs.T if direction == "i2t" else pairs.T[::-1]
    return Positives.of_pairs(own, other, anchors)


def pair_keys(
    images: Integer[np.ndarray, "*#pairs"], captions: Integer[np.ndarray, "*#pairs"], caption_count: int
) -> Int64[np.ndarray, "*pairs"]:
    """Number each pair, rising by image, then by caption."""
    return images.astype(np.int64) * caption_count + captions


def listed_keys(
    direction: Direction, anchors: np.ndarray, candidates: np.ndarray, caption_count: int
) -> Int64[np.ndarray, "*pairs"]:
    """Number each pair as `pair_keys` does, from a direction's anchors and candidates; padding is -1."""
    images, captions = (anchors, candidates) if direction == "i2t" else (candidates, anchors)
    return np.where(candidates < 0, -1, pair_keys(images, captions, caption_count))


def is_among(keys: Int64[np.ndarray, "*some"], ordered: Int64[np.ndarray, " all"]) -> Bool[np.ndarray, "*some"]:
    """Return whether each key is in a rising list.

    >>> is_among(np.array([3, 4]), np.array([1, 3])).tolist()
    [True, False]
    """
    if not len(ordered):
        return np.zeros(keys.shape, dtype=np.bool_)
    return ordered[np.minimum(np.searchsorted(ordered, keys), len(ordered) - 1)] == keys


def require_one_each(values: Sized | None, what: str, count: int) -> None:
    if values is not None and len(values) != count:
        raise ValueError(f"{len(values)} {what} are given for {count} rows; give one per row.")


def read_id_file(named: str) -> list[str]:
    """Read ids from the lines of a text file, or from `FILE::COLUMN` of Parquet, Arrow or a data set."""
    name, _, column = named.partition("::")
    if column or is_hub_name(name) or Path(name).suffix in COLUMNED or Path(name).is_dir():
        return VectorFile.of(named).ids()
    return read_text_lines(Path(named))


def read_text_lines(path: Path) -> list[str]:
    """Read an id or a text per line; refuse a table, whose lines hold several values."""
    lines = read_lines(path)
    if (mark := {".tsv": "\t", ".csv": ",", ".jsonl": "{", ".json": "{"}.get(path.suffix)) and mark in lines[0]:
        raise ValueError(f"{path} is a table; give one column of it, as a text file with a line per row.")
    return lines


def require_order(given: Sequence[str], own: Sequence[str], noun: str) -> None:
    """Refuse ids that the table keeps for other rows."""
    known = {*own}
    for row, (name, kept) in enumerate(zip(given, own, strict=False)):
        if name != kept and name in known:
            raise ValueError(
                f"{name!r} is given as {noun} {row}, but is {noun} {own.index(name)} of the table; give ids in its "
                "order, or leave them out: the table has its own."
            )


def rows_by_id(ids: Sequence[str], noun: str = "image") -> dict[str, int]:
    """Map each id to its row; refuse rows that share one."""
    if len(rows := {name: row for row, name in enumerate(ids)}) < len(ids):
        row = next(row for row, name in enumerate(ids) if rows[name] != row)
        raise ValueError(f"{noun}s {row} and {rows[ids[row]]} both have the id {ids[row]!r}; give each {noun} its own.")
    return rows


COLUMN_PAIRS = (("image_id", "caption_id"), ("query_id", "document_id"), ("query-id", "corpus-id"), ("left", "right"))
TABLE_SUFFIXES = (".parquet", ".csv", ".tsv", ".jsonl")
JUDGEMENT_SUFFIXES = (".qrels", ".trec", ".txt")
_PAIRS_REMEDY = (
    "it needs two columns, "
    + " or ".join(" and ".join(pair) for pair in COLUMN_PAIRS)
    + ", which hold rows, or ids that --image-ids and --caption-ids name"
)

_Column = Sequence[str] | Integer[np.ndarray, " pairs"]
_Columns = tuple[_Column, _Column, Float64[np.ndarray, " pairs"] | None]
"""Both sides of each pair, as rows or ids, and its grade."""


@dataclass(frozen=True)
class Known:
    """A side that pairs refer to: the name of a row, and, if they are known, the number of rows and their ids."""

    noun: str
    count: int | None = None
    ids: Sequence[str] | None = None


def read_pair_file(
    path: Path, images: Known, captions: Known, least_grade: float | None = None
) -> Integer[np.ndarray, "*shape"]:
    """Read the positive pairs, rows (image, caption), or the image of each caption from a .npy vector."""
    suffixes = (".npy", *TABLE_SUFFIXES, *JUDGEMENT_SUFFIXES)
    if path.suffix not in suffixes:
        raise ValueError(f"{path} should pair images with captions, in one of {', '.join(suffixes)}.")
    if path.suffix == ".npy":
        pairs, grades = _open_pairs(path), None
    else:
        read = _read_trec if path.suffix in JUDGEMENT_SUFFIXES or _has_no_header(path) else _read_columns
        left, right, grades = read(path, images.ids is not None, captions.ids is not None)
        if not len(left):
            raise ValueError(f"{path} has no pair; give --unpaired where no caption belongs to any image.")
        pairs = np.stack([find_rows(path, images, left), find_rows(path, captions, right)], axis=1)
    if grades is None and least_grade is not None:
        raise ValueError(f"{path} has no grades, so all its pairs are positives; leave out --min-grade.")
    return pairs if grades is None else pairs[_are_positive(path, grades, least_grade)]


def _open_pairs(path: Path) -> Integer[np.ndarray, "*shape"]:
    array = open_array(path)
    is_fitting = array.ndim == 1 or (array.ndim == 2 and array.shape[1] == 2)
    if not is_fitting or not np.issubdtype(array.dtype, np.integer):
        raise ValueError(
            f"{path} holds {array.dtype} of shape {array.shape}; it needs integers, the row of each caption's image, "
            "or (n, 2) rows (image, caption)."
        )
    return array


def _has_no_header(path: Path) -> bool:
    """Return whether a .tsv begins like TREC's judgements: four fields, the last of which is a number."""
    if path.suffix != ".tsv":
        return False
    with reading(path, "a text file"):
        fields = read_utf8(path).partition("\n")[0].split()
    return len(fields) == 4 and is_number(fields[3])


def _read_trec(path: Path, *_: bool) -> _Columns:
    with reading(path, "a text file"):
        lines = [line.split() for line in read_utf8(path).splitlines()]
    for number, fields in enumerate(lines, start=1):
        if len(fields) != 4:
            hint = " Ids, one per line, go to --image-ids and --caption-ids; --pairs takes pairs." * (len(fields) == 1)
            raise ValueError(
                f"{path}:{number}: {len(fields)} fields where judgements have 4: query 0 document grade.{hint}"
            )
        if not is_number(fields[3]):
            raise ValueError(f"{path}:{number}: the grade {fields[3]!r} is not a number.")
    queries, _, documents, grades = zip(*lines, strict=True) if lines else ((), (), (), ())
    return queries, documents, np.array(grades, dtype=np.float64)


def is_number(text: str) -> bool:
    """Return whether a text is a finite number."""
    try:
        return bool(np.isfinite(float(text)))
    except ValueError:
        return False


def _read_columns(path: Path, *have_ids: bool) -> _Columns:
    with reading(path, "pairs", _PAIRS_REMEDY):
        types, read = open_columns(path)
        matching = [pair for pair in COLUMN_PAIRS if set(pair) <= set(types)]
        if len(matching) != 1:
            raise ValueError(f"its columns are {list(types)}")
        grade = next((name for name in ("grade", "score", "relevance", "label") if name in types), None)
        sides: dict[str, pa.DataType] = {
            name: pa.string() if has_ids and types[name] == pa.string() else pa.int64()
            for name, has_ids in zip(matching[0], have_ids, strict=True)
        }
        table = read(pa.schema(sides | ({grade: pa.float64()} if grade else {})), ())
    left, right = (
        table[name].to_pylist() if kind == pa.string() else table[name].to_numpy() for name, kind in sides.items()
    )
    return left, right, table[grade].to_numpy() if grade else None


def _are_positive(path: Path, grades: Float64[np.ndarray, " pairs"], least: float | None) -> Bool[np.ndarray, " pairs"]:
    if len(wrong := np.flatnonzero(~np.isfinite(grades))):
        raise ValueError(f"{path}: the grade of pair {wrong[0]} is not a number.")
    least = 1.0 if least is None else least
    if not (are_positive := grades >= least).any():
        raise ValueError(
            f"{path}: no pair has a grade of at least {least:g}, the highest is {grades.max():g}; lower --min-grade."
        )
    return are_positive


def find_rows(path: Path | str, side: Known, column: _Column) -> Int64[np.ndarray, " pairs"]:
    """Turn ids or row numbers into rows; each must exist."""
    if side.ids is not None:
        row_of = rows_by_id(side.ids, side.noun)
        # pandas makes floats of a column with gaps: 12.0 is 12, and longer numbers may have been rounded.
        names = [name if name in row_of else re.sub(r"^([0-9]{1,15})\.0\Z", r"\1", name) for name in map(str, column)]
        rows = np.array([row_of.get(name, -1) for name in names], dtype=np.int64)
        reason = f"which is not among the {len(row_of)} ids of {side.noun}s; pairs of rows go into a .npy file"
    else:
        if wrong := [name for name in column if isinstance(name, str) and not is_row_number(name)]:
            raise ValueError(
                f"{path}: {wrong[0]!r} is not a row number; give --{side.noun}-ids where {side.noun}s go by ids."
            )
        rows = np.array(column if isinstance(column, np.ndarray) else [int(name) for name in column], dtype=np.int64)
        reason = f"but there are {side.noun}s 0 to {(side.count or 0) - 1}"
    is_missing = (rows < 0) | (rows >= (np.inf if side.count is None else side.count))
    if is_missing.any():
        pair = int(is_missing.argmax())
        raise ValueError(f"{path}: pair {pair} names {side.noun} {str(column[pair])!r}, {reason}.")
    return rows


def is_row_number(name: str) -> bool:
    return name.isascii() and name.isdecimal() and len(name) < 10
