"""Parquet for sentence-transformers, with the columns of its `mine_hard_negatives`, and writers of Parquet.

    triplet       anchor, positive, negative [, scores]               a row for each pair and each of its negatives
    n-tuple       anchor, positive, negative_1, ... [, scores]        a row for each pair
    labeled-pair  anchor, positive, label | score                     a row for each positive, then each negative
    labeled-list  anchor, positive (a list), labels | scores (lists)  a row for each pair, the positive first

A pair is an anchor with one of its positives. In the labelled formats `positive` holds negatives too; their label is 0.
A picture is given by its path.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Float32, Int32, Int64

from aoq.pipeline.search.positives import offsets_of
from aoq.pipeline.tables.exchange.outgoing import Chunk, Outgoing, Written
from aoq.pipeline.tables.exchange.pictures import PICTURE, require_endings

GROUP_BYTES = 64_000_000
LOAD = """
from datasets import load_dataset
train = load_dataset("$folder", split="train")
"""

Anchors = Int64[np.ndarray, " rows"]
Documents = Int32[np.ndarray, "rows places"]
Scores = Float32[np.ndarray, "rows places"]
Rows = tuple[Anchors, dict[str, pa.Array]]
"""Each row's anchor, and its other columns: both labels and scores; the writer takes one of them."""
Build = Callable[[Chunk, pa.Array], Rows]
"""Makes rows from some anchors and the candidates' names."""


def pair_rows(chunk: Chunk, needed: int) -> tuple[Anchors, Documents, Scores]:
    """List each pair's anchor, its documents (the positive, then the negatives), and their scores.

    Position `needed` of the documents is the last that must not be padding.
    """
    rows = chunk.pair_rows
    documents = np.column_stack([chunk.positives.ids, chunk.lists.negative_ids[rows]])
    scores = np.column_stack([chunk.positive_scores, chunk.lists.scores[rows]])
    has = documents[:, needed] >= 0
    return chunk.first + rows[has], documents[has], scores[has]


def _triplets(chunk: Chunk, candidates: pa.Array) -> Rows:
    anchors, documents, scores = pair_rows(chunk, needed=1)
    pair, place = np.nonzero(documents[:, 1:] >= 0)
    two = pair[:, None], np.stack([np.zeros_like(place), place + 1], axis=1)
    return anchors[pair], _columns(["positive", "negative"], documents[two], scores[two], candidates)


def _tuples(chunk: Chunk, candidates: pa.Array) -> Rows:
    anchors, documents, scores = pair_rows(chunk, needed=-1)
    names = ["positive", *(f"negative_{place}" for place in range(1, documents.shape[1]))]
    return anchors, _columns(names, documents, scores, candidates)


def _columns(names: Sequence[str], documents: Documents, scores: Scores, candidates: pa.Array) -> dict[str, pa.Array]:
    """Make a column for each place, and the scores of a row as a list."""
    columns = {name: candidates.take(rows) for name, rows in zip(names, documents.T, strict=True)}
    return {**columns, "scores": lists_of(pa.array(scores.ravel()), np.full(len(scores), len(names)))}


def lists_of(values: pa.Array, lengths: Int64[np.ndarray, " rows"]) -> pa.ListArray:
    return pa.ListArray.from_arrays(offsets_of(lengths), values)


def _labeled_pairs(chunk: Chunk, candidates: pa.Array) -> Rows:
    ids, has_positive = chunk.lists.negative_ids, np.diff(chunk.positives.offsets) > 0
    listed = np.nonzero((ids >= 0) & has_positive[:, None])
    rows = np.concatenate([chunk.pair_rows, listed[0]])
    order = np.argsort(rows, kind="stable")  # of each anchor the positives first
    documents = np.concatenate([chunk.positives.ids, ids[listed]])[order]
    labels = (order < len(chunk.positives.ids)).astype(np.int64)
    scores = np.concatenate([chunk.positive_scores, chunk.lists.scores[listed]])[order]
    return chunk.first + rows[order], {"positive": candidates.take(documents), "label": labels, "score": scores}


def labeled_lists(chunk: Chunk, candidates: pa.Array, *, column: str = "positive", needed: int = 1) -> Rows:
    anchors, documents, scores = pair_rows(chunk, needed)
    real = documents >= 0
    labels = (np.nonzero(real)[1] == 0).astype(np.int64)
    columns = {column: candidates.take(documents[real]), "labels": pa.array(labels), "scores": pa.array(scores[real])}
    return anchors, {name: lists_of(values, real.sum(axis=1)) for name, values in columns.items()}


def write_rows(
    build: Build, outgoing: Outgoing, path: Path, anchors: Sequence[str], candidates: Sequence[str], column: str
) -> Written:
    """Write the rows that `build` makes of the candidates' names, with the anchors'."""
    # 64-bit offsets: the values taken from these may exceed 2 GB.
    queries, documents = (pa.array(names, pa.large_string()) for names in (anchors, candidates))
    unwanted = ("label", "labels") if outgoing.scored else ("score", "scores")

    def table(chunk: Chunk) -> tuple[Anchors, pa.Table]:
        rows, columns = build(chunk, documents)
        wanted = {name: values for name, values in columns.items() if name not in unwanted}
        return rows, pa.table({column: queries.take(rows), **wanted})

    return write_chunks(table, outgoing, path)


def write_chunks(table: Callable[[Chunk], tuple[Anchors, pa.Table]], outgoing: Outgoing, path: Path) -> Written:
    """Write a table in chunks; an anchor without a row is left out."""
    left_out = len(outgoing.anchors.ids)

    def tables() -> Iterator[pa.Table]:
        nonlocal left_out
        for chunk in outgoing.chunks():
            anchors, rows = table(chunk)
            left_out -= len(np.unique(anchors))
            yield rows

    return Written(write_groups(path, tables()), left_out)


def _write(build: Build, outgoing: Outgoing, folder: Path) -> Written:
    for side in (outgoing.anchors, outgoing.candidates):
        if side.are_pictures:
            require_endings(side.values)
    folder.mkdir()
    anchors, candidates = outgoing.anchors.values, outgoing.candidates.values
    return write_rows(build, outgoing, folder / "train.parquet", anchors, candidates, "anchor")


write_triplets = partial(_write, _triplets)
write_tuples = partial(_write, _tuples)
write_labeled_pairs = partial(_write, _labeled_pairs)
write_labeled_lists = partial(_write, labeled_lists)


def write_groups(path: Path, tables: Iterable[pa.Table]) -> int:
    """Write tables of one schema to a Parquet file, in row groups of about 64 MB; return the number of rows."""
    groups = _groups(tables)
    first = next(groups)
    pictures = {field.name: {"_type": "Image"} for field in first.schema if field.type == PICTURE}
    schema = first.schema.with_metadata({"huggingface": json.dumps({"info": {"features": pictures}})})
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
