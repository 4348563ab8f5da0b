"""What mining will take, said beforehand: operations, time from a short probe, memory and disk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from aoq.pipeline.mining.probe import (
    limits_seconds,
    lists_seconds_and_bytes,
    reading_seconds,
    search_seconds,
    tiles_seconds,
)
from aoq.pipeline.mining.shape import Shape
from aoq.pipeline.search.backends import FACTORY, choose_backend, fastest
from aoq.pipeline.search.problem import DIRECTIONS, Problem


@dataclass(frozen=True)
class Estimate:
    search: str
    why: str
    operations: float | None
    """Floating-point ones; None where an index decides."""
    seconds: Mapping[str, float]
    """Of each part; empty where an index decides."""
    memory_bytes: int
    """Beyond the vectors."""
    vector_bytes: int
    """Mapped; the system keeps in memory of them what fits."""
    work_bytes: int
    table_bytes: int


def estimate(shape: Shape, pool: Problem, search: str, memory: int) -> Estimate:
    """`pool` holds some of the vectors, or ones like them (`aoq.pipeline.mining.probe`)."""
    name, why = fastest() if search == "auto" else (choose_backend(search).name, "as asked")
    one_pass = name == "onepass"
    seconds, table = {"looking the vectors through": reading_seconds(shape, pool)}, 0.0
    if one_pass:
        seconds["limits from samples"] = sum(limits_seconds(shape, pool, direction) for direction in DIRECTIONS)
        seconds["tiles, both directions"] = tiles_seconds(shape, pool)
    elif not name.startswith(FACTORY):
        seconds["search, both directions"] = sum(search_seconds(shape, pool, direction) for direction in DIRECTIONS)
    lists = 0.0
    for direction in DIRECTIONS:
        spent, size = lists_seconds_and_bytes(shape, pool, direction, one_pass=one_pass)
        lists, table = lists + spent, table + size
    seconds["exact scores, lists and files"] = lists
    known = not name.startswith(FACTORY)
    return Estimate(
        name,
        why,
        shape.operations(name) if known else None,
        seconds if known else {},
        memory,
        shape.vector_bytes,
        shape.work_bytes(name),
        int(table),
    )
