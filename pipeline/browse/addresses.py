"""What the address of a page names: a row, a part of a list, and choices."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from flask import abort, request, url_for

from aoq.pipeline.browse.source import Album
from aoq.pipeline.search.problem import Direction

Item = TypeVar("Item")
Kind = Literal["image", "caption"]
DIRECTIONS: dict[Kind, Direction] = {"image": "i2t", "caption": "t2i"}
OTHER: dict[Kind, Kind] = {"image": "caption", "caption": "image"}
"""Kind of an anchor's candidates."""
CHOICES = ("q", "page", "table", "run", "beside", "show")
MOST_DIGITS = 9


@dataclass(frozen=True)
class Page:
    """One page of `total` items; the first is page 1.

    >>> Page(2, total=5, size=2).cut("abcde")
    'cd'
    """

    number: int
    total: int
    size: int

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.last:
            abort(400, f"there is no page {self.number}; choose one of 1 to {self.last}.")

    @property
    def last(self) -> int:
        return max(1, -(-self.total // self.size))

    @property
    def start(self) -> int:
        """Number of items on the pages before."""
        return (self.number - 1) * self.size

    def cut(self, items: Sequence[Item]) -> Sequence[Item]:
        return items[self.start : self.start + self.size]


def parse_row(album: Album, kind: Kind, text: str) -> int:
    """Parse a row of the album's split; abort with the rows that exist."""
    count = album.split.image_count if kind == "image" else album.split.caption_count
    row = _whole_number(text)
    if row is None or row >= count:
        abort(404, f"{kind} {text[:40]}: split {album.split.name!r} has {kind}s 0 to {count - 1}.")
    return row


def requested_page(total: int, size: int) -> Page:
    return Page(_requested_number("page", 1), total, size)


def requested_numbers(name: str, opened: Sequence[object]) -> list[int]:
    """Read the number of an open table or run from the address, and of the one to compare it with, if any."""
    numbers = [_requested_number(name, 0)]
    if request.args.get("beside"):
        numbers.append(_requested_number("beside", 0))
    for number in numbers:
        if number >= len(opened):
            abort(400, f"there is no {name} {number}; choose one of 0 to {len(opened) - 1}.")
    return list(dict.fromkeys(numbers))


def requested_choice(values: Mapping[str, str], name: str, known: Collection[str]) -> str:
    value = values.get(name, "")
    if value not in known:
        abort(400, f"{name}={value[:40]}: choose one of {', '.join(filter(None, known))}.")
    return value


def here(**changes: Any) -> str:
    """Address of this page with other choices; None removes one."""
    choices = {name: request.args[name] for name in CHOICES if name in request.args} | changes
    present = {name: value for name, value in choices.items() if value is not None}
    return url_for(request.endpoint or "start", **(request.view_args or {}), **present)


def _requested_number(name: str, default: int) -> int:
    text = request.args.get(name) or str(default)
    number = _whole_number(text)
    if number is None:
        abort(400, f"{name}={text[:40]}: give a whole number.")
    return number


def _whole_number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= MOST_DIGITS else None
