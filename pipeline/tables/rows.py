"""Rows of a side by their ids; this module imports nothing heavy."""

from __future__ import annotations

from collections.abc import Sequence


def rows_by_id(ids: Sequence[str], noun: str = "image") -> dict[str, int]:
    """Map each id to its row; refuse rows that share one."""
    if len(rows := {name: row for row, name in enumerate(ids)}) < len(ids):
        row = next(row for row, name in enumerate(ids) if rows[name] != row)
        raise ValueError(f"{noun}s {row} and {rows[ids[row]]} both have the id {ids[row]!r}; give each {noun} its own.")
    return rows
