"""Flaws of a dataset folder; many of one kind are summed up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal

MOST_OF_A_KIND = 20
Severity = Literal["error", "warning"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning")


@dataclass(frozen=True)
class Flaw:
    """A flaw of a file: at a line of a text (from 1), at a row of an array (from 0), or in the whole file."""

    file: str
    message: str
    severity: Severity = "error"
    line: int | None = None
    row: int | None = None
    count: int = 1
    """Number of flaws that it represents."""

    def __str__(self) -> str:
        where = f":{self.line}" if self.line is not None else f"[{self.row}]" if self.row is not None else ""
        return f"{self.severity}: {self.file}{where}: {self.message}"


def at_most(flaws: Iterable[Flaw]) -> list[Flaw]:
    """Keep the first MOST_OF_A_KIND flaws, and add one that represents the others."""
    rest = iter(flaws)
    listed = list(islice(rest, MOST_OF_A_KIND))
    if more := sum(1 for _ in rest):
        listed.append(replace(listed[-1], message=f"... and {more:,} more like this", line=None, row=None, count=more))
    return listed


def summed_up(kind: Sequence[Flaw]) -> str:
    """Show the first flaw of a kind, and count the others."""
    more = sum(flaw.count for flaw in kind[1:])
    return f"{kind[0]} (and {more:,} more like this)" if more else f"{kind[0]}"


def total(flaws: Iterable[Flaw], severity: Severity) -> int:
    """Count the flaws, including those that are represented by one."""
    return sum(flaw.count for flaw in flaws if flaw.severity == severity)
