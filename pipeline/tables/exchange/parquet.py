"""Formats of Parquet: sentence-transformers', with the columns of its `mine_hard_negatives`, and PyLate's.

    triplet       anchor, positive, negative [, scores]               a row for each pair and each of its negatives
    n-tuple       anchor, positive, negative_1, ... [, scores]        a row for each pair
    labeled-pair  anchor, positive, label | score                     a row for each positive, then each negative
    labeled-list  anchor, positive (a list), labels | scores (lists)  a row for each pair, the positive first

A pair is an anchor with one of its positives. In the labelled formats `positive` holds negatives too; their label is 0.

    pylate        a folder of three tables for distillation, which `datasets.load_dataset` reads by their names:
      queries     query_id, text
      documents   document_id, text
      train       query_id, document_ids, scores   a row for each pair: the positive first, then its negatives

PyLate stacks the documents of a batch, so all rows have the same number of them: the negatives asked for and one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Float32, Int32, Int64

from aoq.pipeline.search.problem import offsets_of
from aoq.pipeline.tables.exchange.outgoing import Chunk, Names, Outgoing, Written

PYLATE_TABLES = ("train", "queries", "documents")
NAMED_ROWS = 2**16
GROUP_BYTES = 64_000_000

Anchors = Int64[np.ndarray, " rows"]
Documents = Int32[np.ndarray, "rows places"]
Scores = Float32[np.ndarray, "rows places"]
Rows = tuple[Anchors, dict[str, pa.Array]]
"""Each row's anchor, and its other columns: both labels and scores, of which the writer takes one."""
Build = Callable[[Chunk, pa.Array], Rows]
"""What makes rows of some anchors and the candidates' names."""


def _pairs(chunk: Chunk, needed: int) -> tuple[Anchors, Documents, Scores]:
    """Each pair's anchor, its documents (the positive, then the negatives), and their scores.

    Place `needed` of the documents is the last that must not be padding.
    """
    rows = chunk.pair_rows
    documents = np.column_stack([chunk.positives.ids, chunk.lists.negative_ids[rows]])
    scores = np.column_stack([chunk.positive_scores, chunk.lists.scores[rows]])
    has = documents[:, needed] >= 0
    return chunk.first + rows[has], documents[has], scores[has]


def _triplets(chunk: Chunk, candidates: pa.Array) -> Rows:
    anchors, documents, scores = _pairs(chunk, needed=1)
    pair, place = np.nonzero(documents[:, 1:] >= 0)
    two = pair[:, None], np.stack([np.zeros_like(place), place + 1], axis=1)
    return anchors[pair], _columns(["positive", "negative"], documents[two], scores[two], candidates)


def _tuples(chunk: Chunk, candidates: pa.Array) -> Rows:
    anchors, documents, scores = _pairs(chunk, needed=-1)
    names = ["positive", *(f"negative_{place}" for place in range(1, documents.shape[1]))]
    return anchors, _columns(names, documents, scores, candidates)


def _columns(names: Sequence[str], documents: Documents, scores: Scores, candidates: pa.Array) -> dict[str, pa.Array]:
    """A column for each place, and the scores of a row as a list."""
    columns = {name: candidates.take(rows) for name, rows in zip(names, documents.T, strict=True)}
    offsets = np.arange(0, scores.size + 1, len(names))
    return {**columns, "scores": pa.ListArray.from_arrays(offsets, scores.ravel())}


def _labeled_pairs(chunk: Chunk, candidates: pa.Array) -> Rows:
    ids, has_positive = chunk.lists.negative_ids, np.diff(chunk.positives.offsets) > 0
    listed = np.nonzero((ids >= 0) & has_positive[:, None])
    rows = np.concatenate([chunk.pair_rows, listed[0]])
    order = np.argsort(rows, kind="stable")  # of each anchor the positives first
    documents = np.concatenate([chunk.positives.ids, ids[listed]])[order]
    labels = (order < len(chunk.positives.ids)).astype(np.int64)
    scores = np.concatenate([chunk.positive_scores, chunk.lists.scores[listed]])[order]
    return chunk.first + rows[order], {"positive": candidates.take(documents), "label": labels, "score": scores}


def _labeled_lists(chunk: Chunk, candidates: pa.Array, *, column: str = "positive", needed: int = 1) -> Rows:
    anchors, documents, scores = _pairs(chunk, needed)
    real = documents >= 0
    lists = partial(pa.ListArray.from_arrays, offsets_of(real.sum(axis=1)))
    labels = (np.nonzero(real)[1] == 0).astype(np.int64)
    columns = {column: candidates.take(documents[real]), "labels": labels, "scores": scores[real]}
    return anchors, {name: lists(values) for name, values in columns.items()}


def _write(
    build: Build, outgoing: Outgoing, path: Path, anchors: Sequence[str], candidates: Sequence[str], column: str
) -> Written:
    """An anchor of which no row is built is left out."""
    # 64-bit offsets: what is taken from these may be more than 2 GB.
    queries, documents = (pa.array(names, pa.large_string()) for names in (anchors, candidates))
    unwanted = ("label", "labels") if outgoing.scored else ("score", "scores")
    left_out = len(anchors)

    def tables() -> Iterator[pa.Table]:
        nonlocal left_out
        for chunk in outgoing.chunks():
            rows, columns = build(chunk, documents)
            left_out -= len(np.unique(rows))
            wanted = {name: values for name, values in columns.items() if name not in unwanted}
            yield pa.table({column: queries.take(rows), **wanted})

    write_groups(path, tables())
    return Written(pq.read_metadata(path).num_rows, left_out)


def _write_texts(build: Build, outgoing: Outgoing, path: Path) -> Written:
    return _write(build, outgoing, path, outgoing.anchors.texts, outgoing.candidates.texts, "anchor")


write_triplets = partial(_write_texts, _triplets)
write_tuples = partial(_write_texts, _tuples)
write_labeled_pairs = partial(_write_texts, _labeled_pairs)
write_labeled_lists = partial(_write_texts, _labeled_lists)


def write_pylate(outgoing: Outgoing, folder: Path) -> Written:
    """An anchor with fewer negatives than `depth`, or without a positive, has no row in `train`."""
    folder.mkdir()
    _write_names(folder / "queries.parquet", "query_id", outgoing.anchors)
    _write_names(folder / "documents.parquet", "document_id", outgoing.candidates)
    configs = [f"- config_name: {name}\n  data_files: {name}.parquet\n" for name in PYLATE_TABLES]
    (folder / "README.md").write_text("---\nconfigs:\n" + "".join(configs) + "---\n", encoding="utf-8")
    build = partial(_labeled_lists, column="document_ids", needed=-1)
    return _write(build, outgoing, folder / "train.parquet", outgoing.anchors.ids, outgoing.candidates.ids, "query_id")


def _write_names(path: Path, column: str, names: Names) -> None:
    schema = pa.schema({column: pa.large_string(), "text": pa.large_string()})
    parts = (slice(start, start + NAMED_ROWS) for start in range(0, len(names.ids), NAMED_ROWS))
    write_groups(
        path, (pa.table({column: names.ids[part], "text": names.texts[part]}, schema=schema) for part in parts)
    )


def write_groups(path: Path, tables: Iterable[pa.Table]) -> None:
    """Write tables of one schema to a Parquet file, in row groups of about 64 MB."""
    groups = _groups(tables)
    first = next(groups)
    with pq.ParquetWriter(path, first.schema, compression="zstd", write_page_checksum=True) as writer:
        for group in chain([first], groups):
            writer.write_table(group, row_group_size=max(1, len(group)))


def _groups(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    waiting: list[pa.Table] = []
    for table in tables:
        waiting.append(table)
        if sum(one.nbytes for one in waiting) >= GROUP_BYTES:
            yield pa.concat_tables(waiting)
            waiting = []
    if waiting:
        yield pa.concat_tables(waiting)
