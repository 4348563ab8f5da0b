"""Addresses of the pages: the row, the part of a list and the choices that they name."""

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
"""Kind of the items that an anchor lists."""
KEPT = ("q", "page", "table", "run", "beside", "show")
LONGEST = 9


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
            abort(400, f"page {self.number} is asked for, and there are pages 1 to {self.last}.")

    @property
    def last(self) -> int:
        return max(1, -(-self.total // self.size))

    @property
    def start(self) -> int:
        """Number of items on the pages before."""
        return (self.number - 1) * self.size

    def cut(self, items: Sequence[Item]) -> Sequence[Item]:
        return items[self.start : self.start + self.size]


def named_row(album: Album, kind: Kind, given: str) -> int:
    """Find a row of the album's split, or show a page with the existing ones."""
    count = album.split.image_count if kind == "image" else album.split.caption_count
    number = _whole(given)
    if number is None or number >= count:
        abort(404, f"{kind} {given[:40]}: split {album.split.name!r} has {kind}s 0 to {count - 1}.")
    return number


def asked_page(total: int, size: int) -> Page:
    """Read the page number from the address; the first by default."""
    return Page(_asked_number("page", 1), total, size)


def asked_numbers(name: str, opened: Sequence[object]) -> list[int]:
    """Read one number of several from the address, the first by default, and the one to compare with."""
    numbers = [_asked_number(name, 0)]
    if request.args.get("beside"):
        numbers.append(_asked_number("beside", 0))
    for number in numbers:
        if number >= len(opened):
            abort(400, f"{name} {number} is asked for, and 0 to {len(opened) - 1} are open.")
    return list(dict.fromkeys(numbers))


def asked_choice(asked: Mapping[str, str], name: str, known: Collection[str]) -> str:
    """Read a choice from the address; it must be a known value."""
    given = asked.get(name, "")
    if given not in known:
        abort(400, f"{name}={given[:40]}: choose one of {', '.join(filter(None, known))}.")
    return given


def here(**changes: Any) -> str:
    """Address of this page with other choices; None removes one."""
    chosen = {name: request.args[name] for name in KEPT if name in request.args}
    kept = {name: value for name, value in {**chosen, **changes}.items() if value is not None}
    return url_for(request.endpoint or "start", **(request.view_args or {}), **kept)


def _asked_number(name: str, default: int) -> int:
    given = request.args.get(name) or str(default)
    number = _whole(given)
    if number is None:
        abort(400, f"{name}={given[:40]}: give a whole number.")
    return number


def _whole(given: str) -> int | None:
    return int(given) if given.isascii() and given.isdecimal() and len(given) <= LONGEST else None
