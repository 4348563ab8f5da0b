"""sentence-transformers' four training formats, with the columns that `mine_hard_negatives` gives them.

    triplet       anchor, positive, negative [, scores]               a row for each pair and each of its negatives
    n-tuple       anchor, positive, negative_1, ... [, scores]        a row for each pair
    labeled-pair  anchor, positive, label | score                     a row for each positive, then each negative
    labeled-list  anchor, positive (a list), labels | scores (lists)  a row for each pair, the positive first

A pair is an anchor with one of its positives. In the labelled formats `positive` holds negatives too; their label is 0.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
from jaxtyping import Float32, Int32, Int64

from aoq.pipeline.tables.exchange.outgoing import Chunk, Outgoing, string_array
from aoq.pipeline.tables.exchange.written import RowGroups, Written

LABEL = pa.int64()
SCORE = pa.float32()


class _Pairs:
    """The pairs of a chunk, anchor by anchor, with the negatives of each."""

    def __init__(self, chunk: Chunk) -> None:
        counts = np.diff(chunk.positives.offsets)
        self.row: Int64[np.ndarray, " pairs"] = np.repeat(np.arange(len(counts)), counts)
        self.anchor: Int64[np.ndarray, " pairs"] = chunk.first + self.row
        self.positive: Int32[np.ndarray, " pairs"] = chunk.positives.ids
        self.positive_score = chunk.positive_scores
        self.negatives: Int32[np.ndarray, "pairs h"] = chunk.ids[self.row]
        self.scores: Float32[np.ndarray, "pairs h"] = chunk.scores[self.row]
        self.lengths: Int64[np.ndarray, " pairs"] = chunk.lengths[self.row]


Build = Callable[[Chunk, pa.Array, pa.Array], pa.Table]


def _triplets(chunk: Chunk, anchors: pa.Array, candidates: pa.Array) -> pa.Table:
    pairs = _Pairs(chunk)
    pair, place = np.nonzero(pairs.negatives >= 0)
    columns = {
        "anchor": anchors.take(pa.array(pairs.anchor[pair])),
        "positive": candidates.take(pa.array(pairs.positive[pair])),
        "negative": candidates.take(pa.array(pairs.negatives[pair, place])),
    }
    if pairs.positive_score is not None:
        columns["scores"] = _lists(np.stack([pairs.positive_score[pair], pairs.scores[pair, place]], axis=1))
    return pa.table(columns)


def _tuples(chunk: Chunk, anchors: pa.Array, candidates: pa.Array) -> pa.Table:
    pairs, depth = _Pairs(chunk), chunk.ids.shape[1]
    whole = pairs.lengths == depth
    columns = {
        "anchor": anchors.take(pa.array(pairs.anchor[whole])),
        "positive": candidates.take(pa.array(pairs.positive[whole])),
    }
    for place in range(depth):
        columns[f"negative_{place + 1}"] = candidates.take(pa.array(pairs.negatives[whole, place]))
    if pairs.positive_score is not None:
        columns["scores"] = _lists(np.column_stack([pairs.positive_score, pairs.scores])[whole])
    return pa.table(columns)


def _labeled_pairs(chunk: Chunk, anchors: pa.Array, candidates: pa.Array) -> pa.Table:
    pairs = _Pairs(chunk)
    row, place = np.nonzero(chunk.is_real & chunk.has_positive[:, None])
    rows = np.concatenate([pairs.row, row])
    order = np.argsort(rows, kind="stable")  # of each anchor the positives first
    columns = {
        "anchor": anchors.take(pa.array(chunk.first + rows[order])),
        "positive": candidates.take(pa.array(np.concatenate([pairs.positive, chunk.ids[row, place]])[order])),
    }
    if pairs.positive_score is not None:
        columns["score"] = pa.array(np.concatenate([pairs.positive_score, chunk.scores[row, place]])[order], SCORE)
    else:
        columns["label"] = pa.array((order < len(pairs.row)).astype(np.int64), LABEL)
    return pa.table(columns)


def _labeled_lists(chunk: Chunk, anchors: pa.Array, candidates: pa.Array) -> pa.Table:
    pairs = _Pairs(chunk)
    kept = pairs.lengths > 0
    documents = np.column_stack([pairs.positive, pairs.negatives])[kept]
    real = documents >= 0
    offsets = pa.array(np.concatenate([[0], np.cumsum(real.sum(axis=1))]).astype(np.int32))
    columns = {
        "anchor": anchors.take(pa.array(pairs.anchor[kept])),
        "positive": pa.ListArray.from_arrays(offsets, candidates.take(pa.array(documents[real]))),
    }
    if pairs.positive_score is not None:
        scores = np.column_stack([pairs.positive_score, pairs.scores])[kept]
        columns["scores"] = pa.ListArray.from_arrays(offsets, pa.array(scores[real], SCORE))
    else:
        labels = np.zeros(documents.shape, dtype=np.int64)
        labels[:, 0] = 1
        columns["labels"] = pa.ListArray.from_arrays(offsets, pa.array(labels[real], LABEL))
    return pa.table(columns)


def _lists(rows: Float32[np.ndarray, "rows places"]) -> pa.Array:
    offsets = pa.array(np.arange(0, rows.size + 1, rows.shape[1], dtype=np.int32))
    return pa.ListArray.from_arrays(offsets, pa.array(rows.ravel(), SCORE))


def _write(build: Build, outgoing: Outgoing, path: Path, needed: int) -> Written:
    """An anchor without a positive, or with fewer negatives than `needed`, is left out."""
    anchors, candidates = string_array(outgoing.anchors.texts), string_array(outgoing.candidates.texts)
    left_out = 0
    with RowGroups(path, build(outgoing.empty_chunk, anchors, candidates).schema) as groups:
        for chunk in outgoing.chunks():
            left_out += int((~chunk.has_positive | (chunk.lengths < needed)).sum())
            groups.add(build(chunk, anchors, candidates))
    return Written(groups.rows, left_out)


def write_triplets(outgoing: Outgoing, path: Path) -> Written:
    return _write(_triplets, outgoing, path, needed=1)


def write_tuples(outgoing: Outgoing, path: Path) -> Written:
    return _write(_tuples, outgoing, path, needed=outgoing.depth)


def write_labeled_pairs(outgoing: Outgoing, path: Path) -> Written:
    return _write(_labeled_pairs, outgoing, path, needed=0)


def write_labeled_lists(outgoing: Outgoing, path: Path) -> Written:
    return _write(_labeled_lists, outgoing, path, needed=1)
