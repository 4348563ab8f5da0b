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

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from jaxtyping import Float32, Int32, Int64

from aoq.pipeline.tables.exchange.outgoing import Chunk, Names, Outgoing, Written, write_groups

LABEL = pa.int64()
SCORE = pa.float32()
PYLATE_TABLES = ("train", "queries", "documents")
NAMED_ROWS = 2**16

Build = Callable[[Chunk, pa.Array, pa.Array], pa.Table]


class _Pairs(NamedTuple):
    """Each pair's anchor and documents: the positive, then the negatives."""

    anchors: Int64[np.ndarray, " pairs"]
    documents: Int32[np.ndarray, "pairs depth_and_one"]
    scores: Float32[np.ndarray, "pairs depth_and_one"] | None

    @classmethod
    def of(cls, chunk: Chunk) -> _Pairs:
        row, positive = chunk.pair_rows, chunk.positive_scores
        scores = None if positive is None else np.column_stack([positive, chunk.scores[row]])
        return cls(chunk.first + row, np.column_stack([chunk.positives.ids, chunk.ids[row]]), scores)

    def those(self, chosen: Any) -> _Pairs:
        scores = None if self.scores is None else self.scores[chosen]
        return _Pairs(self.anchors[chosen], self.documents[chosen], scores)

    def whole(self) -> _Pairs:
        """The pairs with as many negatives as were asked for."""
        return self.those((self.documents >= 0).all(axis=1))


def _triplets(chunk: Chunk, anchors: pa.Array, candidates: pa.Array) -> pa.Table:
    pairs = _Pairs.of(chunk)
    pair, place = np.nonzero(pairs.documents[:, 1:] >= 0)
    columns = {
        "anchor": _take(anchors, pairs.anchors[pair]),
        "positive": _take(candidates, pairs.documents[pair, 0]),
        "negative": _take(candidates, pairs.documents[pair, place + 1]),
    }
    if pairs.scores is not None:
        columns["scores"] = _lists(np.stack([pairs.scores[pair, 0], pairs.scores[pair, place + 1]], axis=1))
    return pa.table(columns)


def _tuples(chunk: Chunk, anchors: pa.Array, candidates: pa.Array) -> pa.Table:
    pairs = _Pairs.of(chunk).whole()
    names = ["positive", *(f"negative_{place + 1}" for place in range(chunk.ids.shape[1]))]
    columns = {"anchor": _take(anchors, pairs.anchors)}
    columns |= {name: _take(candidates, rows) for name, rows in zip(names, pairs.documents.T, strict=True)}
    return pa.table(columns if pairs.scores is None else {**columns, "scores": _lists(pairs.scores)})


def _labeled_pairs(chunk: Chunk, anchors: pa.Array, candidates: pa.Array) -> pa.Table:
    row, place = np.nonzero((chunk.ids >= 0) & chunk.has_positive[:, None])
    rows = np.concatenate([chunk.pair_rows, row])
    order = np.argsort(rows, kind="stable")  # of each anchor the positives first
    columns = {
        "anchor": _take(anchors, chunk.first + rows[order]),
        "positive": _take(candidates, np.concatenate([chunk.positives.ids, chunk.ids[row, place]])[order]),
    }
    if chunk.positive_scores is not None:
        columns["score"] = pa.array(np.concatenate([chunk.positive_scores, chunk.scores[row, place]])[order], SCORE)
    else:
        columns["label"] = pa.array((order < len(chunk.positives.ids)).astype(np.int64), LABEL)
    return pa.table(columns)


def _labeled_lists(chunk: Chunk, anchors: pa.Array, candidates: pa.Array) -> pa.Table:
    pairs = _Pairs.of(chunk)
    pairs = pairs.those(pairs.documents[:, 1] >= 0)
    real = pairs.documents >= 0
    offsets = pa.array(np.concatenate([[0], np.cumsum(real.sum(axis=1))]).astype(np.int32))
    columns = {
        "anchor": _take(anchors, pairs.anchors),
        "positive": pa.ListArray.from_arrays(offsets, _take(candidates, pairs.documents[real])),
    }
    if pairs.scores is not None:
        columns["scores"] = pa.ListArray.from_arrays(offsets, pa.array(pairs.scores[real], SCORE))
    else:
        labels = np.zeros(real.shape, dtype=np.int64)
        labels[:, 0] = 1
        columns["labels"] = pa.ListArray.from_arrays(offsets, pa.array(labels[real], LABEL))
    return pa.table(columns)


def _distilled(chunk: Chunk, anchors: pa.Array, candidates: pa.Array) -> pa.Table:
    pairs = _Pairs.of(chunk).whole()
    assert pairs.scores is not None  # the format always has them
    scores = _lists(pairs.scores)
    documents = pa.ListArray.from_arrays(scores.offsets, _take(candidates, pairs.documents.ravel()))
    return pa.table({"query_id": _take(anchors, pairs.anchors), "document_ids": documents, "scores": scores})


def _take(names: pa.Array, rows: np.ndarray) -> pa.Array:
    return names.take(pa.array(rows))


def _lists(rows: Float32[np.ndarray, "rows places"]) -> pa.Array:
    offsets = pa.array(np.arange(0, rows.size + 1, rows.shape[1], dtype=np.int32))
    return pa.ListArray.from_arrays(offsets, pa.array(rows.ravel(), SCORE))


def _write(
    build: Build, outgoing: Outgoing, path: Path, anchors: Sequence[str], candidates: Sequence[str], needed: int
) -> Written:
    """An anchor without a positive, or with fewer negatives than `needed`, is left out."""
    # 64-bit offsets: what is taken from these may be more than 2 GB.
    sides = pa.array(anchors, pa.large_string()), pa.array(candidates, pa.large_string())
    left_out = 0

    def tables() -> Iterator[pa.Table]:
        nonlocal left_out
        for chunk in outgoing.chunks():
            left_out += int((~chunk.has_positive | (chunk.lengths < needed)).sum())
            yield build(chunk, *sides)

    rows = write_groups(path, build(outgoing.empty_chunk, *sides).schema, tables())
    return Written(rows, left_out)


def _write_texts(build: Build, outgoing: Outgoing, path: Path, needed: int) -> Written:
    return _write(build, outgoing, path, outgoing.anchors.texts, outgoing.candidates.texts, needed)


def write_triplets(outgoing: Outgoing, path: Path) -> Written:
    return _write_texts(_triplets, outgoing, path, needed=1)


def write_tuples(outgoing: Outgoing, path: Path) -> Written:
    return _write_texts(_tuples, outgoing, path, needed=outgoing.depth)


def write_labeled_pairs(outgoing: Outgoing, path: Path) -> Written:
    return _write_texts(_labeled_pairs, outgoing, path, needed=0)


def write_labeled_lists(outgoing: Outgoing, path: Path) -> Written:
    return _write_texts(_labeled_lists, outgoing, path, needed=1)


def write_pylate(outgoing: Outgoing, folder: Path) -> Written:
    """An anchor with fewer negatives than `depth`, or without a positive, has no row in `train`."""
    folder.mkdir()
    _write_names(folder / "queries.parquet", "query_id", outgoing.anchors)
    _write_names(folder / "documents.parquet", "document_id", outgoing.candidates)
    ids = outgoing.anchors.ids, outgoing.candidates.ids
    written = _write(_distilled, outgoing, folder / "train.parquet", *ids, needed=outgoing.depth)
    configs = [f"- config_name: {name}\n  data_files: {name}.parquet\n" for name in PYLATE_TABLES]
    (folder / "README.md").write_text("---\nconfigs:\n" + "".join(configs) + "---\n", encoding="utf-8")
    return written


def _write_names(path: Path, column: str, names: Names) -> None:
    schema = pa.schema({column: pa.large_string(), "text": pa.large_string()})
    parts = (slice(start, start + NAMED_ROWS) for start in range(0, len(names.ids), NAMED_ROWS))
    tables = (pa.table({column: names.ids[part], "text": names.texts[part]}, schema=schema) for part in parts)
    write_groups(path, schema, tables)
