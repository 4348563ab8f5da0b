"""Search with a new model, but keep the lists of an earlier table where they still hold.

`drift` measures how far a model has moved from a table; this module makes lists.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from jaxtyping import Float64, Int32

from aoq.pipeline.search.exact import exact_heads, lists_table, rescored
from aoq.pipeline.search.problem import BLOCK, DIRECTIONS, Direction, Problem, blocks
from aoq.pipeline.search.store import Store
from aoq.pipeline.search.units import Backend, Steps, Unit, unit_name
from aoq.pipeline.tables.files import read_lists, read_manifest
from aoq.pipeline.tables.statistics import common_by_depth


def refresh(earlier: Path, below: float) -> Backend:
    """Search an anchor again only if less than the fraction `below` of its list's top half stays there.

    The other anchors keep their lists of the table `earlier`, with new scores and in their order. Kept lists have no
    certificate: no other candidate was scored.
    """
    return Backend("drifted", "drifted lists anew, exactly", partial(_steps, earlier, below), guarantee=_guarantee)


def fraction_staying(
    lists: Int32[np.ndarray, "anchors h"], reordered: Int32[np.ndarray, "anchors h"]
) -> Float64[np.ndarray, " anchors"]:
    """Return the fraction of each list's top half that stays there when the list is reordered.

    >>> fraction_staying(np.array([[7, 3, 5, 1]], np.int32), np.array([[7, 5, 1, 3]], np.int32))
    array([0.5])
    """
    half = max(1, lists.shape[1] // 2)
    common = common_by_depth(lists[:, :half], reordered[:, :half])[:, -1]
    return common / np.maximum(1, (lists[:, :half] >= 0).sum(axis=1))


def _steps(earlier: Path, below: float, problem: Problem) -> Steps[Problem]:
    manifest = read_manifest(earlier)
    listed = {direction: read_lists(earlier, direction, manifest).negative_ids for direction in DIRECTIONS}
    return [
        [
            Unit(
                (unit_name(direction, start, stop), f"searched-{unit_name(direction, start, stop)}"),
                partial(_search, listed[direction][start:stop], below, direction, start),
            )
            for direction in DIRECTIONS
            for start, stop in blocks(len(problem[direction].anchors), BLOCK)
        ]
    ]


def _search(
    listed: Int32[np.ndarray, "anchors h"],
    below: float,
    direction: Direction,
    start: int,
    problem: Problem,
    store: Store,
) -> list[pa.Table]:
    side = problem[direction].rows(np.arange(start, start + len(listed)))
    lists = rescored(side, listed)
    is_drifted = fraction_staying(listed[:, : side.h], lists.ids) < below
    rows = np.flatnonzero(is_drifted)
    if len(rows):
        lists.put(rows, exact_heads(side.rows(rows)))
    return [lists_table(side, lists, start), pa.table({"searched": is_drifted})]


def _guarantee(store: Store, direction: Direction) -> dict[str, Any]:
    searched = [store.read(name)["searched"].to_numpy() for name in store.names(f"searched-{direction}-")]
    return {"guarantee": "refreshed", "searched_share": round(float(np.concatenate(searched).mean()), 6)}
