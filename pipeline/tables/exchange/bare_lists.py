"""Formats of rows alone, in both directions, without texts and positives; `aoq import-table` reads them.

A TREC run has a line for each negative, `qid Q0 docid rank score tag`; rows are named by id, or by number.

The lists of AOQ's official code (2020) are `i2t_{name}.npy` and `t2i_{name}.npy`, int32 (anchors, h), hardest first.
Row n of i2t holds caption rows for image n, row n of t2i image rows for caption n. There are neither scores nor
padding: the code draws one of the first `offcandisize` entries (a fifth of them in t2i) of every row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np
from jaxtyping import Float32, Int32, Integer
from numpy.lib.format import open_memmap

from aoq.pipeline.reading import open_array
from aoq.pipeline.tables.exchange.outgoing import Outgoing, Written

TAG = "aoq"
LOAD_RUN = """
aoq import-table $folder/i2t.trec table --pairs pairs.npy  # of two sides; or any reader of runs: ir_measures, trec_eval
"""
LOAD_OFFICIAL = """
aoq import-table $folder/i2t_$folder.npy table --pairs pairs.npy  # of two sides; or the code of 2020
"""
LARGEST_SCORE = float(np.finfo(np.float32).max)


def write_run(outgoing: Outgoing, folder: Path) -> Written:
    """Write one direction's file; ranks start at 1, scores have enough digits to give the same float32 again."""
    queries, documents = outgoing.anchors.ids, outgoing.candidates.ids
    for name in (*queries, *documents):
        if name.split() != [name]:
            raise ValueError(f"{name!r} cannot be an id in a TREC run, whose fields are parted by spaces.")
    rows = left_out = 0
    folder.mkdir(exist_ok=True)
    with (folder / f"{outgoing.direction}.trec").open("w", encoding="utf-8") as file:
        for one in outgoing.listed():
            scored = zip(one.negatives.tolist(), one.scores.astype(str).tolist(), strict=True)
            for rank, (document, score) in enumerate(scored, start=1):
                file.write(f"{queries[one.anchor]} Q0 {documents[document]} {rank} {score} {TAG}\n")
            rows += len(one.negatives)
            left_out += len(one.negatives) == 0
    return Written(rows, left_out)


Rows = Mapping[str, int] | None
"""The row of each id; None if ids are row numbers."""


@dataclass(frozen=True)
class Extent:
    """Size of a run: one more than the greatest rows, the longest list, and the number of lists."""

    queries: int
    documents: int
    longest: int
    lists: int


def measure_run(path: Path, queries: Rows, documents: Rows) -> Extent:
    """Read the whole run, and refuse any error in it."""
    seen: set[int] = set()
    last = longest = 0
    for where, query, found, _ in _lists(path, queries, documents):
        if query in seen:
            raise ValueError(f"{where}: this query has lines further up too; sort the run by query.")
        seen.add(query)
        last, longest = max(last, *found), max(longest, len(found))
    if not seen:
        raise ValueError(f"{path} holds no line.")
    return Extent(max(seen) + 1, last + 1, longest, len(seen))


def read_run(
    path: Path, queries: Rows, documents: Rows, anchors: int, longest: int, work: Path
) -> tuple[Int32[np.ndarray, "anchors longest"], Float32[np.ndarray, "anchors longest"]]:
    """Read ids and scores of a measured run into memory-mapped files in the folder `work`; padded with -1 and NaN."""
    shape = (anchors, longest)
    ids = open_memmap(work / f"{path.name}.ids.npy", mode="w+", dtype=np.int32, shape=shape)
    scores = open_memmap(work / f"{path.name}.scores.npy", mode="w+", dtype=np.float32, shape=shape)
    ids[:], scores[:] = -1, np.nan
    for _, query, found, found_scores in _lists(path, queries, documents):
        ids[query, : len(found)], scores[query, : len(found)] = found, found_scores
    return ids, scores


def _lists(path: Path, queries: Rows, documents: Rows) -> Iterator[tuple[str, int, list[int], list[float]]]:
    """Iterate over lists, the consecutive lines of a query: their first line, the query, the documents and scores."""
    with path.open(encoding="utf-8", errors="replace") as file:
        entries = (_entry(f"{path}:{line}", text, queries, documents) for line, text in enumerate(file, start=1))
        for _, group in groupby(entries, key=lambda entry: entry[1]):
            places, rows, found, scores = zip(*group, strict=True)
            yield places[0], rows[0], list(found), list(scores)


def _entry(where: str, line: str, queries: Rows, documents: Rows) -> tuple[str, int, int, float]:
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


def _row(name: str, rows: Rows, where: str) -> int:
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


def write_official(outgoing: Outgoing, folder: Path) -> Written:
    """Write one direction's file, named after the folder; refuse a list that is too short to fill its row."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{outgoing.direction}_{folder.name}.npy"
    lists = open_memmap(path, mode="w+", dtype=np.int32, shape=(len(outgoing.anchors.ids), outgoing.depth))
    for chunk in outgoing.chunks():
        if (short := chunk.lists.lengths < outgoing.depth).any():
            row = int(short.argmax())
            raise ValueError(
                f"{outgoing.direction}: anchor {chunk.first + row} has {chunk.lists.lengths[row]} negatives, and the "
                f"official lists have no padding; ask for at most as many (--num-negatives), or mine more than "
                f"{outgoing.depth} and export that."
            )
        lists[chunk.first : chunk.first + len(chunk.lists)] = chunk.lists.negative_ids
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
