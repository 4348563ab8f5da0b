"""PyLate's three tables for knowledge distillation, in a folder that `datasets.load_dataset` reads by their names.

    queries    query_id, text
    documents  document_id, text
    train      query_id, document_ids, scores   a row for each pair: the positive first, then its negatives

PyLate stacks the documents of a batch, so all rows have the same number of them: the negatives asked for and one.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from aoq.pipeline.tables.exchange.outgoing import Chunk, Names, Outgoing, string_array
from aoq.pipeline.tables.exchange.written import RowGroups, Written

CONFIGS = ("train", "queries", "documents")
NAMED_ROWS = 2**16


def write_pylate(outgoing: Outgoing, folder: Path) -> Written:
    """An anchor with fewer negatives than `depth`, or without a positive, has no row in `train`."""
    folder.mkdir()
    _write_names(folder / "queries.parquet", "query_id", outgoing.anchors)
    _write_names(folder / "documents.parquet", "document_id", outgoing.candidates)
    anchors, candidates = string_array(outgoing.anchors.ids), string_array(outgoing.candidates.ids)
    left_out = 0
    with RowGroups(folder / "train.parquet", _rows(outgoing.empty_chunk, anchors, candidates).schema) as groups:
        for chunk in outgoing.chunks():
            left_out += int((~chunk.has_positive | (chunk.lengths < outgoing.depth)).sum())
            groups.add(_rows(chunk, anchors, candidates))
    (folder / "README.md").write_text(_card(), encoding="utf-8")
    return Written(groups.rows, left_out)


def _rows(chunk: Chunk, anchors: pa.Array, candidates: pa.Array) -> pa.Table:
    row = np.repeat(np.arange(len(chunk.ids)), np.diff(chunk.positives.offsets))
    whole = chunk.lengths[row] == chunk.ids.shape[1]
    row = row[whole]
    documents = np.column_stack([chunk.positives.ids[whole], chunk.ids[row]])
    positive_scores = chunk.positive_scores
    assert positive_scores is not None
    scores = np.column_stack([positive_scores[whole], chunk.scores[row]])
    offsets = pa.array(np.arange(0, documents.size + 1, documents.shape[1], dtype=np.int32))
    return pa.table(
        {
            "query_id": anchors.take(pa.array(chunk.first + row)),
            "document_ids": pa.ListArray.from_arrays(offsets, candidates.take(pa.array(documents.ravel()))),
            "scores": pa.ListArray.from_arrays(offsets, pa.array(scores.ravel(), pa.float32())),
        }
    )


def _write_names(path: Path, column: str, names: Names) -> None:
    schema = pa.schema({column: pa.large_string(), "text": pa.large_string()})
    with RowGroups(path, schema) as groups:
        for start in range(0, len(names.ids), NAMED_ROWS):
            rows = slice(start, start + NAMED_ROWS)
            groups.add(pa.table({column: names.ids[rows], "text": names.texts[rows]}, schema=schema))


def _card() -> str:
    """What tells `datasets` that the folder has three tables."""
    configs = [f"- config_name: {name}\n  data_files: {name}.parquet\n" for name in CONFIGS]
    return "---\nconfigs:\n" + "".join(configs) + "---\n"
