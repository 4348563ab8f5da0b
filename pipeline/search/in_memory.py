"""Search in memory: vectors in, lists out, and no file written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from aoq.pipeline.search.lists import NegativeLists, from_arrow
from aoq.pipeline.search.problem import Direction, Problem
from aoq.pipeline.search.runners import RECALL_FLOOR, run_search
from aoq.pipeline.search.store import Memory
from aoq.pipeline.search.units import Backend, Progress


@dataclass(frozen=True)
class Searched:
    """The lists of every direction that was searched, and what they are worth."""

    search: str
    """The backend that was chosen."""
    lists: dict[Direction, NegativeLists]
    guarantees: dict[Direction, Mapping[str, Any]]
    """`guarantee`: exact or approximate; of approximate lists also `recall`, measured on `recall_anchors` anchors."""

    def __getitem__(self, direction: Direction) -> NegativeLists:
        return self.lists[direction]


def search_problem(
    problem: Problem,
    *,
    search: str | Backend = "auto",
    recall_floor: float = RECALL_FLOOR,
    progress: Progress = lambda done, total: None,
) -> Searched:
    """Find the lists that `aoq.pipeline.mining.mine` would write into a table.

    What waits between two steps of the search is held in memory too: of the one pass, 12 bytes for each of the about
    `3 * h_images` pairs that a caption keeps.
    """
    store = Memory()
    found = run_search(problem, search, store, recall_floor=recall_floor, progress=progress)
    lists = {
        direction: from_arrow(pa.concat_tables(store.read(name) for name in names))
        for direction, names in found.lists.items()
    }
    return Searched(found.search, lists, dict(found.guarantees))
