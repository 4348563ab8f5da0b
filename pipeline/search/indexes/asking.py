"""Ask an index that is kept in shards for the nearest candidates of some anchors."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32, Int64

from aoq.pipeline.search.brute_force import load_faiss
from aoq.pipeline.search.indexes.recipe import set_parameters
from aoq.pipeline.search.problem import Side
from aoq.pipeline.search.proposals import Heads, near_heads

SLACK = 32
"""Candidates requested beyond h and the positives, for those that an index misjudges; of long lists a quarter."""


class Index:
    """The shards of an index, mapped: the system caches what fits."""

    def __init__(self, folder: Path) -> None:
        faiss = load_faiss()
        mapped = getattr(faiss, "IO_FLAG_MMAP_IFC", faiss.IO_FLAG_MMAP)  # the former since 1.11, for all indexes
        files = sorted(folder.glob("shard-*.faiss"))
        self._shards = [faiss.read_index(str(file), mapped) for file in files]
        self._starts = [int(file.stem.partition("-")[2]) for file in files]

    def nearest(
        self, anchors: Float32[np.ndarray, "anchors D"], k: int, parameters: str
    ) -> Int64[np.ndarray, "anchors k"]:
        """The k candidates of highest near score of all shards; -1 fills rows for which fewer are found."""
        cells: tuple[Any, Any] | None = None
        scores, ids = np.empty((len(anchors), 0), np.float32), np.empty((len(anchors), 0), np.int64)
        for start, shard in zip(self._starts, self._shards, strict=True):
            set_parameters(shard, parameters)
            if len(self._shards) > 1 and hasattr(shard, "search_preassigned"):
                cells = cells or shard.quantizer.search(anchors, shard.nprobe)  # all shards have the same cells
                near, found = shard.search_preassigned(anchors, k, cells[1], cells[0])
            else:
                near, found = shard.search(anchors, k)
            scores = np.concatenate([scores, np.where(found < 0, -np.inf, near)], axis=1)
            ids = np.concatenate([ids, np.where(found < 0, -1, found + start)], axis=1)
            best = np.argsort(-scores, axis=1, kind="stable")[:, :k]
            scores, ids = np.take_along_axis(scores, best, axis=1), np.take_along_axis(ids, best, axis=1)
        return ids


def candidates_asked(wanted: int) -> int:
    """Number of candidates that an index is asked for, where the `wanted` best are needed."""
    return wanted + max(SLACK, wanted // 4)


def near_lists(index: Index, side: Side, parameters: str) -> Heads:
    """Score exactly what the index finds of these anchors; nothing bounds what it does not find."""
    asked = min(candidates_asked(side.wanted), len(side.candidates))
    anchors = np.ascontiguousarray(side.anchors, dtype=np.float32)
    return near_heads(side, index.nearest(anchors, asked, parameters))


@lru_cache(maxsize=4)
def opened_index(folder: Path) -> Index:
    return Index(folder)
