"""Fusion of the lists of several tables into one, whatever their scores.

    rank    the sum of  w_m / (60 + rank_m)  over the members that list the pair, ranks from 1 (Cormack et al., 2009)
    score   the mean, weighted by w_m, of F_m(s) over all members: the fraction of the member's positive pairs that
            score at most s. If a member does not list the pair, s is the lowest score that it lists for the anchor:
            that score bounds all pairs that an exact list leaves out, so the pair loses as little as
            possible through the cut. A member that lists nothing for the anchor gives 0.

In both directions F_m counts the pairs of each caption and its image: the positive scores of t2i. A fused score belongs
to one anchor's list, and the other direction may score the pair differently. Under `score`, `positive_score` is the
same mean of the members' positive scores; under `rank` it is NaN, since no list ranks its positives.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from jaxtyping import Float32, Float64

from aoq.pipeline.columns import read_parquet
from aoq.pipeline.search.lists import NegativeLists
from aoq.pipeline.search.problem import Direction
from aoq.pipeline.tables.files import LISTS, read_chunks, read_manifest
from aoq.pipeline.tables.pairs import ID_COUNT, Pairs, pair_keys
from aoq.pipeline.tables.writing import GROUP_ROWS, write_table

RANK_CONSTANT = 60

Values = tuple[Float64[np.ndarray, "_ _"], Float64[np.ndarray, " _"], Float64[np.ndarray, " _"]]
"""Values of pairs in one member: the listed ones, any other of an anchor, and the lowest positive."""


def by_rank(lists: NegativeLists) -> Values:
    listed = np.broadcast_to(1 / (RANK_CONSTANT + np.arange(1, lists.h + 1)), lists.negative_ids.shape)
    return listed, np.zeros(len(lists)), np.full(len(lists), np.nan)


def by_score(ordered: Float32[np.ndarray, " pairs"], lists: NegativeLists) -> Values:
    """Value each score by the fraction of positives up to it; `ordered` has the positives' scores, rising."""
    listed, positive = (
        np.searchsorted(ordered, scores, side="right") / len(ordered) for scores in (lists.scores, lists.positive_score)
    )
    lowest = np.where(lists.negative_ids >= 0, listed, np.inf).min(axis=1)
    unlisted = np.where(np.isfinite(lowest), lowest, 0.0)
    return listed, unlisted, np.where(np.isfinite(lists.positive_score), positive, np.nan)


def fuse(
    members: Sequence[NegativeLists], measured: Sequence[Values], weights: Sequence[float], h: int
) -> NegativeLists:
    """Find the h best pairs of the same anchors in all members: score falling, then id rising."""
    entries = [np.nonzero(lists.negative_ids >= 0) for lists in members]
    keys = [
        pair_keys(entry[0], lists.negative_ids[entry], ID_COUNT) for lists, entry in zip(members, entries, strict=True)
    ]
    pairs = np.unique(np.concatenate(keys))
    anchors, ids = np.divmod(pairs, ID_COUNT)
    total, sources = np.zeros(len(pairs)), np.zeros(len(pairs), dtype=np.uint8)
    positive = np.zeros(len(members[0]))
    for bit, ((listed, unlisted, lowest), weight) in enumerate(zip(measured, weights, strict=True)):
        place = np.searchsorted(pairs, keys[bit])
        counted = unlisted[anchors]
        counted[place] = listed[entries[bit]]
        total += weight * counted
        positive += weight * lowest
        sources[place] |= np.uint8(1 << bit)
    scores = total.astype(np.float32)
    order = np.lexsort((ids, -scores, anchors))
    place = np.arange(len(order)) - np.searchsorted(anchors, anchors)
    order, place = order[place < h], place[place < h]
    shape, at = (len(positive), h), (anchors[order], place)
    best, best_scores, listed_by = np.full(shape, -1), np.full(shape, np.nan), np.zeros(shape, np.uint8)
    best[at], best_scores[at], listed_by[at] = ids[order], scores[order], sources[order]
    return NegativeLists(best.astype(np.int32), np.float32(best_scores), positive.astype(np.float32), listed_by)


def fuse_tables(
    folders: Sequence[Path],
    names: Sequence[str],
    *,
    method: Literal["rank", "score"],
    weights: Sequence[float] | None,
    depths: Mapping[Direction, int],
    provenance: Mapping[str, Any],
    positives: Pairs,
    output: Path,
) -> None:
    """Write the fused table of those in `folders` to the folder `output`, one row group at a time."""
    shares = np.array(weights or [1.0] * len(folders))
    shares = shares if method == "rank" else shares / shares.sum()
    ordered = [_positive_pairs(folder) for folder in folders] if method == "score" else None

    def fused(direction: Direction, h: int) -> Iterator[NegativeLists]:
        parts = (read_chunks(folder, direction, read_manifest(folder), GROUP_ROWS) for folder in folders)
        for members in zip(*parts, strict=True):
            values = map(by_rank, members) if ordered is None else map(by_score, ordered, members)
            yield fuse(members, list(values), shares.tolist(), h)

    about = {"search": "fusion", "guarantee": "fused", "sources": list(names)}
    contents = {direction: ({"h": h, **about}, fused(direction, h)) for direction, h in depths.items()}
    write_table(output, provenance, contents, positives)


def _positive_pairs(folder: Path) -> Float32[np.ndarray, " pairs"]:
    columns = pa.schema([LISTS.field("positive_score")])
    scores = read_parquet(folder / "t2i.parquet", columns)["positive_score"].to_numpy()
    scores = np.sort(scores[np.isfinite(scores)])
    if not len(scores):
        raise ValueError(
            f"{folder} has no scores of positives to compare its scores with (a table fused by rank has none); fuse by "
            'method = "rank".'
        )
    return scores
