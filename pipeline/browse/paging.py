"""Parts of long lists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

Item = TypeVar("Item")


class BadQueryError(ValueError):
    """An address asks for what cannot be."""


@dataclass(frozen=True)
class Page:
    """One page of `total` things; the first is page 1.

    >>> Page(2, total=5, size=2).cut("abcde")
    'cd'
    """

    number: int
    total: int
    size: int

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.last:
            raise BadQueryError(f"page {self.number} is asked for, and there are pages 1 to {self.last}.")

    @property
    def last(self) -> int:
        return max(1, -(-self.total // self.size))

    @property
    def start(self) -> int:
        """How many things are on the pages before."""
        return (self.number - 1) * self.size

    def cut(self, items: Sequence[Item]) -> Sequence[Item]:
        return items[self.start : self.start + self.size]
