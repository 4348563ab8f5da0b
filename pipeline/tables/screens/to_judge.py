"""Pairs to be judged: a table's negatives as a file to which a judge adds probabilities."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq

from aoq.pipeline.config.screen import CERTAIN, EXCLUSIONS, RULES
from aoq.pipeline.tables.pairs import listed_keys
from aoq.pipeline.tables.screens.view import View, bit
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
        is_open = lists.negative_ids[:, :top] >= 0
        if view is not None:
            flags = view[direction].flags[:, :top]
            is_open &= (flags & KNOWN == 0) & (flags & WEAKER > 0)
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


def check_format(path: Path) -> None:
    """Refuse a path whose extension names no format."""
    if path.suffix not in WRITERS:
        raise ValueError(f"{path} should be a file that ends in one of {', '.join(WRITERS)}.")


def write_pairs(
    path: Path, pairs: pa.Table, *, images: Sequence[str] | None = None, captions: Sequence[str] | None = None
) -> None:
    """Write the pairs in the format of the path's extension, with the ids or texts of either side if given."""
    values = {"image": ("image_id", images), "caption": ("caption_id", captions)}
    named = {name: (column, texts) for name, (column, texts) in values.items() if texts is not None}
    schema = pa.schema([*pairs.schema, *((name, pa.string()) for name in named)])
    with WRITERS[path.suffix](path, schema) as writer:
        for start in range(0, len(pairs), ROWS):
            part = pairs.slice(start, ROWS)
            for name, (column, texts) in named.items():
                part = part.append_column(name, pa.array([texts[row] for row in part[column].to_pylist()], pa.string()))
            writer.write_table(part)


class _JsonLines:
    def __init__(self, path: Path, _: pa.Schema) -> None:
        self._path = path

    def __enter__(self) -> _JsonLines:
        self._file = self._path.open("w", encoding="utf-8")
        return self

    def write_table(self, part: pa.Table) -> None:
        self._file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in part.to_pylist())

    def __exit__(self, *_: object) -> None:
        self._file.close()


WRITERS: dict[str, Callable[[Path, pa.Schema], Any]] = {
    ".parquet": partial(pq.ParquetWriter, compression="zstd", write_page_checksum=True),
    ".csv": csv.CSVWriter,
    ".tsv": partial(csv.CSVWriter, write_options=csv.WriteOptions(delimiter="\t")),
    ".jsonl": _JsonLines,
}
