"""Pairs to be judged: a table's negatives as a file to which a judge adds probabilities."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
from jaxtyping import Bool

from aoq.pipeline.config.screen import CERTAIN, EXCLUSIONS, RULES
from aoq.pipeline.tables.pairs import listed_keys
from aoq.pipeline.tables.screens.rules import bit
from aoq.pipeline.tables.screens.view import Judged, View
from aoq.pipeline.tables.table import NegativeTable

ROWS = 2**16
"""Rows written at a time."""
KNOWN = sum(bit(rule) for rule in (*EXCLUSIONS, *CERTAIN, "judgements"))
WEAKER = sum(map(bit, RULES)) - KNOWN


def pairs_to_judge(table: NegativeTable, *, top: int, view: View | None = None) -> pa.Table:
    """Collect the pairs among the first `top` of each list, each once, by image, then by caption: data rows and scores.

    With a view, only those that its weaker rules suspect: not what it leaves out, nor what a judge or people judged.

    Raises:
        ValueError: if there are none.
    """
    captions = len(table.t2i)
    keys, scores = [], []
    for direction in table.directions:
        lists = table[direction]
        asked = lists.negative_ids[:, :top] >= 0
        if view is not None:
            asked &= _suspected(view[direction])[:, :top]
        anchors, places = np.nonzero(asked)
        candidates = lists.negative_ids[anchors, places]
        scores.append(lists.scores[anchors, places])
        if table.is_one_set:  # either order is the same pair
            anchors, candidates = np.minimum(anchors, candidates), np.maximum(anchors, candidates)
        keys.append(listed_keys(direction, anchors, candidates, captions))
    found, first = np.unique(np.concatenate(keys), return_index=True)
    if not len(found):
        where = "the table lists none" if view is None else f"the view suspects none of the first {top} of each list"
        raise ValueError(f"there are no pairs to judge: {where}; give another view, or a larger --top.")
    columns = {"image_id": found // captions, "caption_id": found % captions}
    similarity = pa.array(np.concatenate(scores)[first], from_pandas=True)  # null in a table without scores
    return pa.table({**columns, "similarity": similarity})


def _suspected(judged: Judged) -> Bool[np.ndarray, "anchors h"]:
    return (judged.flags & KNOWN == 0) & (judged.flags & WEAKER > 0)


def write_pairs(
    path: Path, pairs: pa.Table, *, images: Sequence[str] | None = None, captions: Sequence[str] | None = None
) -> None:
    """Write the pairs in the format of the path's extension, with the ids or texts of either side if given."""
    WRITERS[path.suffix](path, _named(pairs, images, captions))


def check_format(path: Path) -> None:
    """Refuse a path whose extension names no format."""
    if path.suffix not in WRITERS:
        raise ValueError(f"{path} should be a file that ends in one of {', '.join(WRITERS)}.")


def _named(pairs: pa.Table, images: Sequence[str] | None, captions: Sequence[str] | None) -> Iterator[pa.Table]:
    for start in range(0, len(pairs), ROWS):
        part = pairs.slice(start, ROWS)
        for name, column, values in (("image", "image_id", images), ("caption", "caption_id", captions)):
            if values is not None:
                rows = part[column].to_pylist()
                part = part.append_column(name, pa.array([values[row] for row in rows], pa.string()))
        yield part


def _write_parquet(path: Path, parts: Iterator[pa.Table]) -> None:
    first = next(parts)
    with pq.ParquetWriter(path, first.schema, compression="zstd", write_page_checksum=True) as writer:
        writer.write_table(first)
        for part in parts:
            writer.write_table(part)


def _write_csv(path: Path, parts: Iterator[pa.Table], delimiter: str = ",") -> None:
    first = next(parts)
    with csv.CSVWriter(path, first.schema, write_options=csv.WriteOptions(delimiter=delimiter)) as writer:
        writer.write_table(first)
        for part in parts:
            writer.write_table(part)


def _write_json_lines(path: Path, parts: Iterator[pa.Table]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for part in parts:
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in part.to_pylist())


WRITERS: dict[str, Callable[[Path, Iterator[pa.Table]], None]] = {
    ".parquet": _write_parquet,
    ".csv": _write_csv,
    ".tsv": lambda path, parts: _write_csv(path, parts, "\t"),
    ".jsonl": _write_json_lines,
}
