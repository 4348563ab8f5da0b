"""Formats whose rows hold ids, beside tables with the text or picture of each id.

    ids       train     query_id, positive_id, negative_ids [, scores]   a row for each pair
              images    image_id, image                                  or text, as for captions
              captions  caption_id, text                                 of one set: items, with item_id
    pylate    train     query_id, document_ids, scores                   a row for each pair: the positive first
              queries   query_id, text
              documents document_id, text
    tevatron  train     query_id, query_text, query_image, positive_document_ids, negative_document_ids
              corpus    docid, text, image                               a row of train for each anchor
    colpali   train     query, positive_passages, negative_passages      a row for each pair; rows of corpus
              corpus    doc

sentence-transformers and PyLate make a column of each place, colpali-engine a tensor of each batch, so all their rows
have the requested number of negatives. Tevatron draws from lists of any length.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from aoq.pipeline.tables.exchange.outgoing import Chunk, Names, Outgoing, Written
from aoq.pipeline.tables.exchange.parquet import (
    Anchors,
    Rows,
    labeled_lists,
    lists_of,
    pair_rows,
    write_chunks,
    write_groups,
    write_rows,
)
from aoq.pipeline.tables.exchange.pictures import parts, picture_column

NAMED_ROWS = 2**16

LOAD_IDS = """
from datasets import load_dataset
from sentence_transformers.util import resolve_ids
train, $tables = (load_dataset("$folder", name, split="train") for name in ("train", $names))
train.set_transform(resolve_ids({"query_id": $queries, "positive_id": $documents, "negative_ids": $documents}))
"""
LOAD_PYLATE = """
from datasets import load_dataset
from pylate.utils import KDProcessing
train, queries, documents = (load_dataset("$folder", name, split="train") for name in ("train", "queries", "documents"))
train.set_transform(KDProcessing(queries=queries, documents=documents).transform)
"""
LOAD_TEVATRON = """
from tevatron.retriever.arguments import DataArguments
from tevatron.retriever.dataset import TrainDataset
data = TrainDataset(DataArguments(dataset_name="$folder/train", corpus_name="$folder/corpus"))
"""
LOAD_COLPALI = """
from colpali_engine.data import ColPaliEngineDataset, Corpus
from datasets import load_dataset
train, corpus = (load_dataset("$folder", name, split="train") for name in ("train", "corpus"))
data = ColPaliEngineDataset(train, Corpus(corpus), "query", "positive_passages", "negative_passages")
"""


def write_ids(outgoing: Outgoing, folder: Path) -> Written:
    """Write ids; an anchor with fewer than `depth` negatives or without a positive gets no row in `train`."""
    folder.mkdir()
    for side in {side.noun: side for side in (outgoing.anchors, outgoing.candidates)}.values():
        value = "image" if side.are_pictures else "text"
        write_lookup(folder / f"{side.noun}s.parquet", side, f"{side.noun}_id", value, packed=outgoing.packed)
    anchors, candidates = outgoing.anchors.ids, outgoing.candidates.ids
    return write_rows(_id_rows, outgoing, folder / "train.parquet", anchors, candidates, "query_id")


def _id_rows(chunk: Chunk, candidates: pa.Array) -> Rows:
    anchors, documents, scores = pair_rows(chunk, needed=-1)
    negatives, each = documents[:, 1:], np.full(len(documents), documents.shape[1])
    return anchors, {
        "positive_id": candidates.take(documents[:, 0]),
        "negative_ids": lists_of(candidates.take(negatives.ravel()), each - 1),
        "scores": lists_of(pa.array(scores.ravel()), each),
    }


def write_pylate(outgoing: Outgoing, folder: Path) -> Written:
    """Write PyLate's tables; an anchor with fewer than `depth` negatives or no positive gets no row in `train`."""
    folder.mkdir()
    write_lookup(folder / "queries.parquet", outgoing.anchors, "query_id", "text")
    write_lookup(folder / "documents.parquet", outgoing.candidates, "document_id", "text")
    build = partial(labeled_lists, column="document_ids", needed=-1)
    return write_rows(
        build, outgoing, folder / "train.parquet", outgoing.anchors.ids, outgoing.candidates.ids, "query_id"
    )


def write_tevatron(outgoing: Outgoing, folder: Path) -> Written:
    """Write Tevatron's tables; an anchor without positives or negatives is left out: the trainer draws from both."""
    for name in ("", "train", "corpus"):  # one folder each: the trainer takes one name for each
        (folder / name).mkdir()
    corpus, value = folder / "corpus" / "train.parquet", "image" if outgoing.candidates.are_pictures else "text"
    write_lookup(corpus, outgoing.candidates, "docid", value, packed=outgoing.packed)
    return write_chunks(partial(_tevatron_rows, outgoing), outgoing, folder / "train" / "train.parquet")


def _tevatron_rows(outgoing: Outgoing, chunk: Chunk) -> tuple[Anchors, pa.Table]:
    names = pa.array(outgoing.candidates.ids, pa.large_string())
    rows = np.flatnonzero((np.diff(chunk.positives.offsets) > 0) & (chunk.lists.lengths > 0))
    own, listed = chunk.positives.rows(rows), chunk.lists.negative_ids[rows]
    anchors = chunk.first + rows
    values = [outgoing.anchors.values[row] for row in anchors.tolist()]
    if outgoing.anchors.are_pictures:
        query = {"query_text": [""] * len(rows), "query_image": picture_column(values, packed=outgoing.packed)}
    else:
        query = {"query_text": pa.array(values, pa.large_string())}
    columns = {
        "query_id": pa.array([outgoing.anchors.ids[row] for row in anchors.tolist()], pa.large_string()),
        **query,
        "positive_document_ids": lists_of(names.take(own.ids), np.diff(own.offsets)),
        "negative_document_ids": lists_of(names.take(listed[listed >= 0]), (listed >= 0).sum(axis=1)),
    }
    return anchors, pa.table(columns)


def write_colpali(outgoing: Outgoing, folder: Path) -> Written:
    """Write colpali-engine's tables; an anchor with fewer than `depth` negatives or without a positive is left out."""
    folder.mkdir()
    write_lookup(folder / "corpus.parquet", outgoing.candidates, None, "doc", packed=outgoing.packed)
    train, anchors = folder / "train.parquet", outgoing.anchors.values
    return write_rows(_colpali_rows, outgoing, train, anchors, outgoing.candidates.ids, "query")


def _colpali_rows(chunk: Chunk, _: pa.Array) -> Rows:
    anchors, documents, _ = pair_rows(chunk, needed=-1)
    own, negatives = (pa.array(part.ravel(), pa.int64()) for part in (documents[:, :1], documents[:, 1:]))
    one, each = np.ones(len(documents), np.int64), np.full(len(documents), documents.shape[1] - 1)
    return anchors, {"positive_passages": lists_of(own, one), "negative_passages": lists_of(negatives, each)}


def write_lookup(path: Path, side: Names, id_column: str | None, value_column: str, *, packed: bool = False) -> None:
    """Write each row's id, if there is a column for it, and its text or picture."""

    def tables() -> Iterator[pa.Table]:
        for part in _parts(side, packed):
            values = side.values[part]
            column = picture_column(values, packed=packed) if side.are_pictures else pa.array(values, pa.large_string())
            ids = {} if id_column is None else {id_column: pa.array(side.ids[part], pa.large_string())}
            yield pa.table({**ids, value_column: column})

    write_groups(path, tables())


def _parts(side: Names, packed: bool) -> Iterator[slice]:
    if packed and side.are_pictures:
        yield from parts(side.values, NAMED_ROWS)
    else:
        yield from (slice(start, start + NAMED_ROWS) for start in range(0, len(side.ids), NAMED_ROWS))
