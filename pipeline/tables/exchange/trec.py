"""TREC runs: a line for each negative, `qid Q0 docid rank score tag`; an image goes by its id, a caption by its row."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np
from jaxtyping import Float32, Int32
from numpy.lib.format import open_memmap

from aoq.pipeline.tables.exchange.outgoing import Outgoing, Written

TAG = "aoq"


def write_run(outgoing: Outgoing, path: Path) -> Written:
    """Ranks start at 1; scores have as many digits as give the same float32 again."""
    queries, documents = outgoing.anchors.ids, outgoing.candidates.ids
    for name in (*queries, *documents):
        if name.split() != [name]:
            raise ValueError(f"{name!r} cannot be an id in a TREC run, whose fields are parted by spaces.")
    rows = left_out = 0
    with path.open("w", encoding="utf-8") as file:
        for chunk in outgoing.chunks():
            left_out += int((chunk.lengths == 0).sum())
            for row, length in enumerate(chunk.lengths.tolist()):
                query = queries[chunk.first + row]
                scores = chunk.scores[row, :length].astype(str).tolist()
                for place, (document, score) in enumerate(zip(chunk.ids[row, :length].tolist(), scores, strict=True)):
                    file.write(f"{query} Q0 {documents[document]} {place + 1} {score} {TAG}\n")
                rows += length
    return Written(rows, left_out)


Rows = Mapping[str, int] | None
"""The row of each id; None where an id is its row number."""


@dataclass(frozen=True)
class Extent:
    """What a run speaks of: one more than the greatest rows, and the longest list."""

    queries: int
    documents: int
    longest: int


def measure_run(path: Path, queries: Rows, documents: Rows) -> Extent:
    """Reads the whole run, and refuses what is wrong with it."""
    seen: set[int] = set()
    last = longest = 0
    for line, query, found, _ in _lists(path, queries, documents):
        if query in seen:
            raise ValueError(f"{path}:{line}: this query has lines further up too; sort the run by query.")
        seen.add(query)
        last, longest = max(last, *found), max(longest, len(found))
    if not seen:
        raise ValueError(f"{path} holds no line.")
    return Extent(max(seen) + 1, last + 1, longest)


def read_run(
    path: Path, queries: Rows, documents: Rows, anchors: int, longest: int, work: Path
) -> tuple[Int32[np.ndarray, "anchors longest"], Float32[np.ndarray, "anchors longest"]]:
    """Ids and scores of a run that was measured, memory-mapped files in the folder `work`; padded with -1 and NaN."""
    shape = (anchors, longest)
    ids = open_memmap(work / f"{path.name}.ids.npy", mode="w+", dtype=np.int32, shape=shape)
    scores = open_memmap(work / f"{path.name}.scores.npy", mode="w+", dtype=np.float32, shape=shape)
    ids[:], scores[:] = -1, np.nan
    for _, query, found, found_scores in _lists(path, queries, documents):
        ids[query, : len(found)], scores[query, : len(found)] = found, found_scores
    return ids, scores


def _lists(path: Path, queries: Rows, documents: Rows) -> Iterator[tuple[int, int, list[int], list[float]]]:
    """The number of its first line, the query, the documents and scores, for all lines of a query in a row."""
    with path.open(encoding="utf-8", errors="replace") as file:
        for _, entries in groupby(_entries(path, file, queries, documents), key=lambda entry: entry[1]):
            lines, rows, found, scores = zip(*entries, strict=True)
            yield lines[0], rows[0], list(found), list(scores)


def _entries(path: Path, lines: Iterator[str], queries: Rows, documents: Rows) -> Iterator[tuple[int, int, int, float]]:
    for number, line in enumerate(lines, start=1):
        fields = line.split()
        if len(fields) != 6:
            raise ValueError(
                f"{path}:{number}: {len(fields)} fields where a TREC run has 6: qid Q0 docid rank score tag."
            )
        try:
            score = float(fields[4])
        except ValueError:
            score = math.nan
        if not math.isfinite(score):
            raise ValueError(f"{path}:{number}: the score {fields[4]!r} is not a finite number.")
        where = f"{path}:{number}"
        yield number, _row(fields[0], queries, where), _row(fields[2], documents, where), score


def _row(name: str, rows: Rows, where: str) -> int:
    if rows is not None:
        if name not in rows:
            raise ValueError(f"{where}: {name!r} is none of the {len(rows)} image ids.")
        return rows[name]
    if not (name.isascii() and name.isdecimal()) or len(name) > 9:
        raise ValueError(f"{where}: {name!r} is no row number; give --image-ids where images go by ids.")
    return int(name)
