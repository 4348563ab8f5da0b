"""An anchor's list as a page shows it: filtered, cut into pages, beside another table's."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass

import numpy as np

from aoq.pipeline.browse.source import OpenTable
from aoq.pipeline.data.folder import Split
from aoq.pipeline.search.problem import Direction
from aoq.pipeline.tables.inspection import Inspection, Negative, inspect_list

Pair = tuple[int, int]
"""An image and a caption, by row."""
GENERAL: dict[str, tuple[str, Callable[[Negative], bool]]] = {
    "": ("all", lambda negative: True),
    "above": ("as similar as a positive", lambda negative: negative.above_positive),
    "duplicate": ("near-duplicate or same text", lambda negative: bool(negative.duplicate)),
    "left": ("without flags", lambda negative: not negative.flags),
}
MARKED = "marked"


@dataclass(frozen=True)
class Look:
    """One table's list of an anchor."""

    table: OpenTable
    inspection: Inspection
    chosen: tuple[Negative, ...]
    """Those that the filter leaves."""
    ranks: dict[int, int]
    """Of all that are listed, by row."""


def filters(tables: Sequence[OpenTable]) -> dict[str, str]:
    """What a list can be narrowed to, with a title for each."""
    rules = [rule for table in tables for rule in table.rules]
    flagged = {name: title for name, (title, _) in GENERAL.items() if rules or name != "left"}
    return {**flagged, **{rule: f"flag: {rule}" for rule in rules}, MARKED: "marked as true matches"}


def look(table: OpenTable, split: Split, direction: Direction, anchor: int, show: str, marked: Container[Pair]) -> Look:
    """All of the list is inspected, since filters ask for what its negatives say."""
    listed = table.lists[direction][anchor]
    places = np.flatnonzero(listed.negative_ids >= 0)
    inspection = inspect_list(listed, split, places, table.store)
    chosen = tuple(one for one in inspection.negatives if _meets(one, show, pair(direction, anchor, one.row) in marked))
    return Look(table, inspection, chosen, {one.row: one.rank for one in inspection.negatives})


def _meets(negative: Negative, show: str, is_marked: bool) -> bool:
    if show == MARKED:
        return is_marked
    return GENERAL[show][1](negative) if show in GENERAL else show in negative.flags


def pair(direction: Direction, anchor: int, candidate: int) -> Pair:
    """The image and the caption of a listed negative."""
    return (anchor, candidate) if direction == "i2t" else (candidate, anchor)
