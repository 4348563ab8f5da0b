"""Metrics where a query may have many right answers: R-Precision, mAP@R, recall at K (Musgrave et al., ECCV 2020).

Candidates as similar as a relevant one, and not relevant, stand before it. Ranks are found by counting.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int, Int64

from aoq.pipeline.evaluation.retrieval import K

COLUMNS = 512


@dataclass(frozen=True)
class Relevant:
    """The right answers of each query: those of query n are `ids[offsets[n]:offsets[n + 1]]`, each once.

    Queries without any are left out of all means.
    """

    ids: Int64[np.ndarray, " pairs"]
    offsets: Int64[np.ndarray, " queries_and_one"]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, query: int) -> Int64[np.ndarray, " some"]:
        return self.ids[self.offsets[query] : self.offsets[query + 1]]


def relevant(
    queries: Int[np.ndarray, " pairs"], candidates: Int[np.ndarray, " pairs"], *, count: int, among: int
) -> Relevant:
    """From pairs in any order, repeated or not; `count` queries, `among` candidates.

    >>> relevant(np.array([1, 0, 1, 1]), np.array([4, 2, 0, 4]), count=3, among=5)[1]
    array([0, 4])
    """
    for name, rows, limit in (("queries", queries, count), ("candidates", candidates, among)):
        if len(rows) and not 0 <= rows.min() <= rows.max() < limit:
            raise ValueError(f"relevance names {name} {rows.min()} to {rows.max()}, and there are 0 to {limit - 1}.")
    keys = np.unique(queries.astype(np.int64) * among + candidates)
    offsets = np.concatenate([[0], np.cumsum(np.bincount(keys // among, minlength=count))])
    return Relevant(keys % among, offsets.astype(np.int64))


def ranks_of_relevant(
    scores: Float[np.ndarray, " candidates"], right: Int64[np.ndarray, " some"]
) -> Int64[np.ndarray, " some"]:
    """From 1, rising: where the right answers of a query stand among all candidates.

    >>> ranks_of_relevant(np.array([0.5, 0.9, 0.7, 0.7]), np.array([0, 2]))
    array([3, 4])
    """
    own = -np.sort(-scores[right])  # falling
    # How many of the right ones score less than each candidate: it stands before these, and ties stand before too.
    before = np.searchsorted(-own, -scores, side="left")
    wrong = np.bincount(before, minlength=len(own) + 1)
    wrong -= np.bincount(before[right], minlength=len(own) + 1)
    return wrong.cumsum()[: len(own)] + np.arange(1, len(own) + 1)


def r_precision(scores: Float[np.ndarray, " candidates"], is_right: Bool[np.ndarray, " candidates"]) -> float:
    """Of the first R candidates, R being how many are right, the share that is right; for queries with many of them.

    >>> r_precision(np.array([0.5, 0.9, 0.7, 0.7]), np.array([True, False, True, False]))
    0.0
    """
    count = int(np.count_nonzero(is_right))
    last = np.partition(scores, len(scores) - count)[len(scores) - count]
    above, level = scores > last, scores == last
    found = np.count_nonzero(above & is_right)
    wrong = np.count_nonzero(level & ~is_right)  # they stand before the right ones of the same score
    return float(found + max(0, count - np.count_nonzero(above) - wrong)) / count


def columns(
    similarity: Float[np.ndarray, "images captions"], captions: Int[np.ndarray, " some"]
) -> Iterator[Float[np.ndarray, " images"]]:
    """The scores of these captions, in order; a matrix on disk is read some columns at a time."""
    for start in range(0, len(captions), COLUMNS):
        yield from np.ascontiguousarray(similarity[:, captions[start : start + COLUMNS]].T)


def summarise_relevance(similarity: Iterable[Float[np.ndarray, " candidates"]], right: Relevant) -> dict[str, float]:
    """In percent, over the queries that have right answers; `similarity` gives a row for each query, in order.

    r_precision  of the first R candidates, R being how many are right, the share that is right
    map_r        1/R * sum over r <= R of (precision among the first r) * (is the r-th right?)
    r1, r5, r10  a right one among the first K
    """
    sums, queries = np.zeros(2 + len(K)), 0
    for query, scores in enumerate(similarity):
        ids = right[query]
        if not len(ids):
            continue
        check_finite(scores, query)
        ranks = ranks_of_relevant(scores, ids)
        found = ranks <= len(ids)
        precision = np.arange(1, len(ids) + 1) / ranks
        sums += [found.mean(), (precision * found).sum() / len(ids), *(ranks[0] <= k for k in K)]
        queries += 1
    if not queries:
        raise ValueError("no query has a right answer; does the file belong to this split?")
    names = ["r_precision", "map_r", *(f"r{k}" for k in K)]
    return dict(zip(names, (100.0 * sums / queries).tolist(), strict=True))


def check_finite(scores: Float[np.ndarray, " candidates"], query: int) -> None:
    if not np.isfinite(scores).all():
        candidate = int(np.flatnonzero(~np.isfinite(scores))[0])
        raise ValueError(f"the similarity of query {query} and candidate {candidate} is {scores[candidate]}.")
