"""Formats of rows alone, without texts and positives, a file for each direction; `aoq import-table` reads them.

A TREC run has a line for each negative, `qid Q0 docid rank score tag`; rows are named by id, or by number.

The lists of AOQ's official code (2020) are `i2t_{name}.npy` and `t2i_{name}.npy`, int32 (anchors, h), hardest first.
Row n of i2t holds caption rows for image n, row n of t2i image rows for caption n. There are neither scores nor
padding: the code draws one of the first `offcandisize` entries (a fifth of them in t2i) of every row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32, Int32, Integer
from numpy.lib.format import open_memmap

from aoq.pipeline.reading import open_array
from aoq.pipeline.tables.exchange.outgoing import Outgoing, Written

TAG = "aoq"
LARGEST_SCORE = float(np.finfo(np.float32).max)


def write_run(outgoing: Outgoing, folder: Path) -> Written:
    """Write one direction's file; ranks start at 1, scores have enough digits to give the same float32 again."""
    queries, documents = outgoing.anchors.ids, outgoing.candidates.ids
    for name in (*queries, *documents):
        if name.split() != [name]:
            raise ValueError(f"{name!r} cannot be an id in a TREC run, whose fields are separated by spaces.")
    lines = left_out = 0
    folder.mkdir(exist_ok=True)
    with (folder / f"{outgoing.direction}.trec").open("w", encoding="utf-8") as file:
        for rows in outgoing.rows():
            left_out += int((rows.negatives < 0).all(axis=1).sum())
            for anchor, row, scores in zip(rows.anchors, rows.negatives, rows.negative_scores, strict=True):
                listed = row >= 0
                negatives = zip(row[listed].tolist(), scores[listed].astype(str).tolist(), strict=True)
                for rank, (document, score) in enumerate(negatives, start=1):
                    file.write(f"{queries[anchor]} Q0 {documents[document]} {rank} {score} {TAG}\n")
                    lines += 1
    return Written(lines, left_out)


def write_official(outgoing: Outgoing, folder: Path) -> Written:
    """Write one direction's file, named after the folder; refuse a list that is too short to fill its row."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{outgoing.direction}_{folder.name}.npy"
    lists = open_memmap(path, mode="w+", dtype=np.int32, shape=(len(outgoing.anchors.ids), outgoing.depth))
    for rows in outgoing.rows():
        if len(short := np.flatnonzero(rows.negatives[:, -1] < 0)):
            listed = int((rows.negatives[short[0]] >= 0).sum())
            raise ValueError(
                f"{outgoing.direction}: anchor {rows.anchors[short[0]]} has {listed} negatives, and the official lists "
                f"have no padding; ask for at most as many (--num-negatives), or mine more than {outgoing.depth} and "
                "export that."
            )
        lists[rows.anchors] = rows.negatives
    lists.flush()
    return Written(len(lists))


def open_official(path: Path) -> Integer[np.ndarray, "anchors h"]:
    """Open the lists of one direction, memory-mapped."""
    lists = open_array(path)
    if lists.ndim != 2 or 0 in lists.shape or not np.issubdtype(lists.dtype, np.integer):
        raise ValueError(
            f"{path} holds {lists.dtype} of shape {lists.shape}; official lists are integers of shape (anchors, h)."
        )
    return lists


RowsById = Mapping[str, int] | None
"""The row of each id; None if ids are row numbers."""


class Extent(NamedTuple):
    """Size of a run: one more than the greatest rows, the longest list, and the number of lists."""

    queries: int
    documents: int
    longest: int
    lists: int


def measure_run(path: Path, queries: RowsById, documents: RowsById) -> Extent:
    """Read the whole run, and refuse any error in it."""
    seen: set[int] = set()
    last = longest = 0
    for where, query, listed, _ in _lists(path, queries, documents):
        if query in seen:
            raise ValueError(f"{where}: this query has lines further up too; sort the run by query.")
        seen.add(query)
        last, longest = max(last, *listed), max(longest, len(listed))
    if not seen:
        raise ValueError(f"{path} holds no line.")
    return Extent(max(seen) + 1, last + 1, longest, len(seen))


def read_run(
    path: Path, queries: RowsById, documents: RowsById, anchors: int, longest: int, work: Path
) -> tuple[Int32[np.ndarray, "anchors longest"], Float32[np.ndarray, "anchors longest"]]:
    """Read ids and scores of a measured run into memory-mapped files in the folder `work`; padded with -1 and NaN."""
    shape = (anchors, longest)
    ids = open_memmap(work / f"{path.name}.ids.npy", mode="w+", dtype=np.int32, shape=shape)
    scores = open_memmap(work / f"{path.name}.scores.npy", mode="w+", dtype=np.float32, shape=shape)
    ids[:], scores[:] = -1, np.nan
    for _, query, listed, listed_scores in _lists(path, queries, documents):
        ids[query, : len(listed)], scores[query, : len(listed)] = listed, listed_scores
    return ids, scores


def _lists(path: Path, queries: RowsById, documents: RowsById) -> Iterator[tuple[str, int, list[int], list[float]]]:
    """Iterate over lists, the consecutive lines of a query: their first line, the query, the documents and scores."""
    with path.open(encoding="utf-8", errors="replace") as file:
        entries = (_entry(f"{path}:{line}", text, queries, documents) for line, text in enumerate(file, start=1))
        for _, group in groupby(entries, key=lambda entry: entry[1]):
            places, rows, listed, scores = zip(*group, strict=True)
            yield places[0], rows[0], list(listed), list(scores)


def _entry(where: str, line: str, queries: RowsById, documents: RowsById) -> tuple[str, int, int, float]:
    fields = line.split()
    if len(fields) != 6:
        raise ValueError(f"{where}: {len(fields)} fields where a TREC run has 6: qid Q0 docid rank score tag.")
    try:
        score = float(fields[4])
    except ValueError:
        score = math.nan
    if not abs(score) <= LARGEST_SCORE:
        raise ValueError(f"{where}: the score {fields[4]!r} is not a finite number, or too large for float32.")
    return where, _row(fields[0], queries, where), _row(fields[2], documents, where), score


def _row(name: str, rows: RowsById, where: str) -> int:
    if rows is not None:
        if name not in rows:
            raise ValueError(f"{where}: {name!r} is none of the {len(rows)} ids.")
        return rows[name]
    if not (name.isascii() and name.isdecimal()) or len(name) > 9:
        raise ValueError(
            f"{where}: {name!r} is no row number; give --image-ids where images go by ids, and --caption-ids where "
            "captions do."
        )
    return int(name)
