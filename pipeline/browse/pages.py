"""The pages: pictures, search, an anchor's list, the lists with an item, marking, and runs' answers to queries."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
from flask import Flask, Response, abort, redirect, render_template, request, url_for
from werkzeug.wrappers import Response as Redirect

from aoq.pipeline.browse.marks import Marks
from aoq.pipeline.browse.source import Album, Evaluated, Gallery, OpenTable, find_captions
from aoq.pipeline.evaluation.significance import RECALL_METRICS
from aoq.pipeline.report.collect import ranked_answers
from aoq.pipeline.search.problem import Direction
from aoq.pipeline.tables.inspection import Inspection, Negative, inspect_anchor

_Item = TypeVar("_Item")
ItemKind = Literal["image", "caption"]
LISTS_OF: dict[ItemKind, Direction] = {"image": "i2t", "caption": "t2i"}
CANDIDATES_OF: dict[ItemKind, ItemKind] = {"image": "caption", "caption": "image"}
PICTURES, ENTRIES, _ANSWERS = 60, 50, 20
"""Items on a page."""
CHOICES = ("q", "page", "table", "run", "beside", "show")
MOST_DIGITS = 9
CACHED = {"Cache-Control": "private, max-age=3600"}
NO_PICTURE = (
    b'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 120 90"><rect width="120" height="90" fill="#8884"/><text '
    b'x="60" y="49" font-size="12" text-anchor="middle" font-family="sans-serif" fill="#888">no picture</text></svg>'
)
FILTERS: dict[str, tuple[str, Callable[[Negative, bool | None], bool]]] = {
    "": ("all", lambda negative, mark: True),
    "above": ("as similar as a positive", lambda negative, mark: negative.above_positive),
    "duplicate": ("near-duplicate or same text", lambda negative, mark: bool(negative.duplicate)),
    "marked": ("marked as true matches", lambda negative, mark: mark is True),
    "rejected": ("marked as no match", lambda negative, mark: mark is False),
    "left": ("without flags", lambda negative, mark: not negative.flags),
}
"""Filters of a list: a title, and a predicate of a negative and its mark. Further filters are the rules of views."""
SHOWS = {"": "not marked", "all": "all", "marked": "marked"}
"""Filters of suspects."""


def add_common_pages(app: Flask, source: Gallery, marks: Marks | None) -> None:
    """Add the start page and the pictures."""
    albums = {album.key: album for album in (source.train, *(run.album for run in source.evaluations)) if album}

    @app.get("/")
    def start() -> str:
        images = len(source.train.split.ids) if source.train else 0
        page = _requested_page(images, PICTURES)
        numbers, unmarked = [0], 0
        if source.tables and marks is not None:
            numbers = _requested_numbers("table", source.tables)
            suspects = source.tables[numbers[0]].suspects
            unmarked = sum(marks.judgement(one.image, one.caption) is None for one in suspects)
        shown = {"page": page, "images": page.cut(range(images)), "metrics": RECALL_METRICS}
        return render_template("start.html.j2", numbers=numbers, unmarked=unmarked, **shown)

    @app.get("/picture/<name>/<row>")
    def picture(name: str, row: str) -> Response:
        if name not in albums:
            abort(404, f"there are no pictures of {name[:60]}; choose one of {', '.join(albums)}.")
        read = albums[name].read_picture(_parse_row(albums[name], "image", row))
        content, kind = (NO_PICTURE, "image/svg+xml") if read is None else (read.content, read.media_type)
        return Response(content, mimetype=kind, headers={} if read is None else CACHED)


def add_anchor_pages(app: Flask, train: Album, tables: Sequence[OpenTable], marks: Marks) -> None:
    """Add the pages of the training split and its tables, and those that mark pairs."""

    @app.get("/search")
    def search() -> str:
        query = request.args.get("q", "").strip()
        rows = find_captions(train.texts, query)
        page = _requested_page(len(rows), ENTRIES)
        return render_template("search.html.j2", query=query, page=page, rows=page.cut(rows))

    @app.get("/<any(image, caption):kind>/<row>")
    def anchor(kind: ItemKind, row: str) -> str:
        number, numbers = _parse_row(train, kind, row), _requested_numbers("table", tables)
        rules = [rule for n in numbers for rule in tables[n].rules]
        titles = {name: title for name, (title, _) in FILTERS.items() if rules or name != "left"}
        titles |= {rule: f"flag: {rule}" for rule in rules}
        show = _requested_choice(request.args, "show", titles)
        looks = [_look(tables[n], train, kind, number, show, marks) for n in numbers]
        page = _requested_page(max(len(one.chosen) for one in looks), ENTRIES)
        shown = {"looks": looks, "page": page, "numbers": numbers, "filters": titles, "show": show}
        return render_template("anchor.html.j2", kind=kind, other=CANDIDATES_OF[kind], row=number, **shown)

    @app.get("/<any(image, caption):kind>/<row>/listed")
    def listed(kind: ItemKind, row: str) -> str:
        number, numbers = _parse_row(train, kind, row), _requested_numbers("table", tables)
        lists = tables[numbers[0]].lists[LISTS_OF[CANDIDATES_OF[kind]]]
        places, anchors = np.nonzero((lists.negative_ids == number).T)
        page = _requested_page(len(places), ENTRIES)
        listings = page.cut(
            [*zip(places.tolist(), anchors.tolist(), lists.scores[anchors, places].tolist(), strict=True)]
        )
        shown = {"lists": lists, "listings": listings, "page": page, "numbers": numbers}
        return render_template("listed.html.j2", kind=kind, other=CANDIDATES_OF[kind], row=number, **shown)

    @app.get("/suspects")
    def suspects() -> str:
        numbers, show = _requested_numbers("table", tables), _requested_choice(request.args, "show", SHOWS)
        table = tables[numbers[0]]
        is_marked = [marks.judgement(one.image, one.caption) is not None for one in table.suspects]
        both = zip(table.suspects, is_marked, strict=True)
        shown = [one for one, marked in both if show == "all" or marked == (show == "marked")]
        page = _requested_page(len(shown), ENTRIES)
        about = {"total": len(is_marked), "marked": sum(is_marked), "shows": SHOWS, "show": show}
        return render_template("suspects.html.j2", numbers=numbers, page=page, rows=page.cut(shown), **about)

    @app.post("/mark")
    def mark() -> Redirect:
        image, caption = (_parse_row(train, side, request.form.get(side, "")) for side in LISTS_OF)
        if image in train.split.find_answers("t2i", caption):
            abort(400, f"caption {caption} belongs to image {image}, so there is nothing to mark.")
        back, place = request.form.get("back", "/"), request.form.get("next", "")
        if not back.startswith("/") or back.startswith(("//", "/\\")) or not (back.isascii() and back.isprintable()):
            abort(400, "a mark leads back to a page of this server only.")
        judgements = {"yes": True, "no": False, "none": None}
        judgement = judgements[_requested_choice(request.form, "match", judgements)]
        answer = redirect(f"{back.partition('#')[0]}#{place}" if place else back, 303)
        # Last: a refused request must not have written anything.
        marks.mark(image, caption, judgement, back)
        return answer

    @app.post("/undo")
    def undo() -> Redirect:
        back = marks.undo()
        if back is None:
            abort(400, "this server has no mark to undo.")
        return redirect(back, 303)

    @app.get("/agreement")
    def agreement() -> str:
        return render_template("agreement.html.j2", agreements=marks.agreements())


def add_query_pages(app: Flask, runs: Sequence[Evaluated]) -> None:
    """Add the pages of evaluations: their queries, and the answers of one or two runs."""

    @app.get("/queries")
    def queries() -> str:
        numbers = _requested_numbers("run", runs)
        album = runs[numbers[0]].album
        query = request.args.get("q", "").strip()
        rows = find_captions(album.texts, query) if query else range(len(album.split.ids))
        page = _requested_page(len(rows), PICTURES)
        shown = {"album": album, "query": query, "page": page, "rows": page.cut(rows)}
        return render_template("queries.html.j2", numbers=numbers, **shown)

    @app.get("/query/<any(image, caption):kind>/<row>")
    def query(kind: ItemKind, row: str) -> str:
        numbers = _requested_numbers("run", runs)
        chosen = [runs[n] for n in numbers]
        album = chosen[0].album
        if chosen[-1].album is not album:
            abort(400, f"{chosen[0].name} and {chosen[-1].name} answered different queries; choose one of them.")
        number = _parse_row(album, kind, row)
        by_run = [(one.name, ranked_answers(one.similarity, one.split, LISTS_OF[kind], number)) for one in chosen]
        page = _requested_page(len(by_run[0][1]), _ANSWERS)
        shown = {"album": album, "by_run": by_run, "page": page, "numbers": numbers}
        return render_template("query.html.j2", kind=kind, other=CANDIDATES_OF[kind], row=number, **shown)


class Look(NamedTuple):
    """One table's list of an anchor: the negatives that pass the filter, and the ranks of all candidates by row."""

    table: OpenTable
    inspection: Inspection
    chosen: list[Negative]
    ranks: dict[int, int]


def _look(table: OpenTable, train: Album, kind: ItemKind, anchor: int, show: str, marks: Marks) -> Look:
    direction = LISTS_OF[kind]
    most = table.lists[direction].h  # the whole list, since filters depend on the negatives' details
    inspection = inspect_anchor(table.lists, train.split, direction, anchor, most, table.store, table.view)

    def is_chosen(negative: Negative) -> bool:
        mark = marks.judgement(*((anchor, negative.row) if kind == "image" else (negative.row, anchor)))
        return FILTERS[show][1](negative, mark) if show in FILTERS else show in negative.flags

    chosen = [negative for negative in inspection.negatives if is_chosen(negative)]
    return Look(table, inspection, chosen, {negative.row: negative.rank for negative in inspection.negatives})


@dataclass(frozen=True)
class Page:
    """One page of `total` items; the first is page 1.

    >>> Page(2, total=5, size=2).cut("abcde")
    'cd'
    """

    number: int
    total: int
    size: int

    @property
    def last(self) -> int:
        return max(1, -(-self.total // self.size))

    @property
    def start(self) -> int:
        return (self.number - 1) * self.size

    def cut(self, items: Sequence[_Item]) -> Sequence[_Item]:
        return items[self.start : self.start + self.size]


def here(**changes: Any) -> str:
    """Address of this page with other choices; None removes one."""
    choices = {name: request.args[name] for name in CHOICES if name in request.args} | changes
    return url_for(request.endpoint or "start", **(request.view_args or {}), **choices)


def _requested_page(total: int, size: int) -> Page:
    page = Page(_requested_number("page", 1), total, size)
    return replace(page, number=min(max(page.number, 1), page.last))  # marks may have emptied the last page


def _requested_numbers(name: str, opened: Sequence[object]) -> list[int]:
    """Read the number of an open table or run from the address, and of the one to compare it with, if any."""
    numbers = [_requested_number(name, 0)]
    if request.args.get("beside"):
        numbers.append(_requested_number("beside", 0))
    for number in numbers:
        if number >= len(opened):
            abort(400, f"there is no {name} {number}; choose one of 0 to {len(opened) - 1}.")
    return list(dict.fromkeys(numbers))


def _requested_number(name: str, default: int) -> int:
    text = request.args.get(name) or str(default)
    number = _whole_number(text)
    if number is None:
        abort(400, f"{name}={text[:40]}: give a whole number.")
    return number


def _requested_choice(values: Mapping[str, str], name: str, known: Collection[str]) -> str:
    value = values.get(name, "")
    if value not in known:
        abort(400, f"{name}={value[:40]}: choose one of {', '.join(filter(None, known))}.")
    return value


def _parse_row(album: Album, kind: ItemKind, text: str) -> int:
    count, row = len(album.split.ids if kind == "image" else album.split.captions), _whole_number(text)
    if row is None or row >= count:
        abort(404, f"{kind} {text[:40]}: there are {kind}s 0 to {count - 1}.")
    return row


def _whole_number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= MOST_DIGITS else None
