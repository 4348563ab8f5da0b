"""Judged pairs: files of pairs to judge, of pairs known to match, and of probabilities that a judge gives."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pyarrow.parquet as pq
from jaxtyping import Float32, Int64

from aoq.pipeline.columns import fitted, open_columns
from aoq.pipeline.config.screen import CERTAIN, EXCLUSIONS
from aoq.pipeline.reading import parse_json, read_file, reading
from aoq.pipeline.tables.contents import TableContents
from aoq.pipeline.tables.files import PAIRS
from aoq.pipeline.tables.pairs import TABLE_SUFFIXES, Known, Pairs, find_rows, listed_keys, pair_keys
from aoq.pipeline.tables.screens.view import View, bit

_ROWS = pa.schema([(name, pa.int64()) for name in PAIRS.names])
_PART_ROWS = 2**16
"""Rows whose texts are in memory at a time."""
_FORMULA = r"^[=+@\t\r-]"
"""Start of a cell that spreadsheets compute; with an apostrophe before it, they show it as text."""
_ROWS_REMEDY = f"it needs rows, whole numbers from 0 and not ids, in the columns {' and '.join(PAIRS.names)}"


@dataclass(frozen=True)
class Judgements:
    """The judged pairs, each once, by image, then by caption; all other pairs are unjudged."""

    pairs: Pairs
    probabilities: Float32[np.ndarray, " pairs"]
    """Probability that the image and the caption match."""


def read_matches(path: Path, images: int, captions: int) -> Pairs:
    """Read pairs that people judged to match, as in CxC and ECCV Caption, by image, each once.

    They are rows of the data, in the columns caption_id and image_id, or in json {caption: [image, ...]}. Files with a
    column of judgements are refused: not all of their pairs match.
    """
    if path.suffix == ".json":
        with reading(path, "pairs known to match", f"{_ROWS_REMEDY}, or json {{caption: [image, ...]}}"):
            images_of = parse_json(read_file(path), dict[str, list[int]])
            rows = [(int(caption), image) for caption, listed in images_of.items() for image in listed]
            table = pa.table([[pair[side] for pair in rows] for side in range(2)], schema=_ROWS)
    else:
        table = _read(path, "pairs known to match", (".parquet", ".csv", ".json"), _ROWS, judged=False)
    return np.unique(np.stack(_find_side_rows(str(path), table, images, captions), axis=1).astype(np.int32), axis=0)


def read_judgements(
    source: Path | pa.Table,
    images: int,
    captions: int,
    *,
    grades: tuple[float, float] | None = None,
    one_set: bool = False,
) -> Judgements:
    """Read judgements from a file, or an Arrow table of the same columns; a pair without a value is not judged.

    The columns are caption_id and image_id, rows of the data, and probability; with `grades` (lowest, highest) it is
    grade, p = (grade - lowest) / (highest - lowest). In one set either order is the same pair, and the lower row comes
    first. A pair with several values has their mean.
    """
    value = "probability" if grades is None else "grade"
    schema = pa.schema([*_ROWS, (value, pa.float64())])
    if isinstance(source, Path):
        remedy = (
            ", and numbers in the column probability, or grade with judged_grades; `aoq to-judge` writes such a file"
        )
        name, table = str(source), _read(source, "judgements", TABLE_SUFFIXES, schema, remedy)
    else:
        name, table = "judgements", fitted(source, schema, nullable=[value])
    table = table.filter(table[value].is_valid())
    image_rows, caption_rows = _find_side_rows(name, table, images, captions)
    values = table[value].to_numpy()
    if one_set:
        image_rows, caption_rows = np.minimum(image_rows, caption_rows), np.maximum(image_rows, caption_rows)
    lowest, highest = (0.0, 1.0) if grades is None else grades
    if len(outside := np.flatnonzero(~((values >= lowest) & (values <= highest)))):
        first = outside[0]
        raise ValueError(
            f"{name}: image {image_rows[first]} and caption {caption_rows[first]} have {value} {values[first]:g}, but "
            f"it lies between {lowest:g} and {highest:g}; "
            + ("grades of another range need judged_grades." if grades is None else "give the judge's own range.")
        )
    probabilities = (values - lowest) / (highest - lowest)
    keys, which = np.unique(pair_keys(image_rows, caption_rows, captions), return_inverse=True)
    means = np.bincount(which, probabilities) / np.bincount(which)
    pairs = np.stack(np.divmod(keys, captions), axis=1).astype(np.int32)
    return Judgements(pairs, means.astype(np.float32))


def _read(
    path: Path, what: str, suffixes: Collection[str], columns: pa.Schema, remedy: str = "", *, judged: bool = True
) -> pa.Table:
    """Read columns; all but the two with rows may have empty values."""
    if path.suffix not in suffixes:
        raise ValueError(f"{path} should hold {what}, in one of {', '.join(suffixes)}.")
    with reading(path, what, _ROWS_REMEDY + remedy):
        names, read = open_columns(path)
        table = read(columns, columns.names[2:])
    if not judged and (values := sorted({"probability", "grade", "similarity"} & names.keys())):
        raise ValueError(f"{path} has a column {values[0]!r}, so not all of its pairs match; give it as judgements.")
    return table


def _find_side_rows(name: str, table: pa.Table, images: int, captions: int) -> list[Int64[np.ndarray, " rows"]]:
    sides = Known("image", images), Known("caption", captions)
    return [find_rows(name, side, table[f"{side.noun}_id"].to_numpy()) for side in sides]


def pairs_to_judge(table: TableContents, *, top: int, view: View | None = None) -> pa.Table:
    """Collect the pairs among the first `top` of each list, each once, by image, then by caption: data rows and scores.

    With a view, only pairs that its weaker rules flag and no other rule does; judged pairs are left out.
    """
    known, captions = sum(bit(rule) for rule in (*EXCLUSIONS, *CERTAIN, "judgements")), len(table.t2i)
    keys, scores = [], []
    for direction in table.directions:
        lists = table[direction].head(top)
        is_open = lists.negative_ids >= 0
        if view is not None:
            flags = view[direction].flags[:, :top]
            is_open &= (flags & known == 0) & (flags > 0)
        anchors, places = np.nonzero(is_open)
        candidates = lists.negative_ids[anchors, places]
        scores.append(lists.scores[anchors, places])
        if table.is_one_set:  # either order is the same pair
            anchors, candidates = np.minimum(anchors, candidates), np.maximum(anchors, candidates)
        keys.append(listed_keys(direction, anchors, candidates, captions))
    unique, first = np.unique(np.concatenate(keys), return_index=True)
    if not len(unique):
        where = "the table lists none" if view is None else f"the view suspects none of the first {top} of each list"
        raise ValueError(f"there are no pairs to judge: {where}; give another view, or a larger --top.")
    columns = {"image_id": unique // captions, "caption_id": unique % captions}
    similarity = pa.array(np.concatenate(scores)[first], from_pandas=True)  # null in a table without scores
    return pa.table({**columns, "similarity": similarity})


def write_pairs(
    path: Path, pairs: pa.Table, *, images: Sequence[str] | None = None, captions: Sequence[str] | None = None
) -> None:
    """Write the pairs in the format of the path's extension, with the ids or texts of the sides that have them."""
    for side, texts in (("image", images), ("caption", captions)):
        if texts is not None:
            column, rows = pa.array(texts, pa.string()), pairs[f"{side}_id"].combine_chunks()
            if path.suffix in (".csv", ".tsv"):
                column = pc.replace_substring_regex(column, _FORMULA, r"'\0")
            parts = [column.take(rows[start : start + _PART_ROWS]) for start in range(0, len(rows), _PART_ROWS)]
            pairs = pairs.append_column(side, pa.chunked_array(parts, pa.string()))
    if path.suffix == ".parquet":
        pq.write_table(pairs, path, compression="zstd", write_page_checksum=True)
    elif path.suffix == ".jsonl":
        with path.open("w", encoding="utf-8") as file:
            for part in pairs.to_batches(max_chunksize=_PART_ROWS):
                file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in part.to_pylist())
    else:
        csv.write_csv(pairs, path, csv.WriteOptions(delimiter="\t" if path.suffix == ".tsv" else ","))
