"""The pages: pictures, search, an anchor's list, the lists with an item, marking, and runs' answers to queries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from flask import Flask, Response, abort, redirect, render_template, request
from werkzeug.wrappers import Response as Redirect

from aoq.pipeline.browse.addresses import (
    DIRECTIONS,
    OTHER,
    Kind,
    parse_row,
    requested_choice,
    requested_numbers,
    requested_page,
)
from aoq.pipeline.browse.marks import Marks
from aoq.pipeline.browse.source import Album, Evaluated, OpenTable, Source
from aoq.pipeline.evaluation.significance import METRICS
from aoq.pipeline.tables.inspection import Inspection, Negative, inspect_list

PICTURES = 60
ENTRIES = 50
ANSWERS = 20
PICTURE_SECONDS = 3600
NO_PICTURE = (
    b'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 120 90"><rect width="120" height="90" fill="#8884"/><text '
    b'x="60" y="49" font-size="12" text-anchor="middle" font-family="sans-serif" fill="#888">no picture</text></svg>'
)
FILTERS: dict[str, tuple[str, Callable[[Negative], bool]]] = {
    "": ("all", lambda negative: True),
    "above": ("as similar as a positive", lambda negative: negative.above_positive),
    "duplicate": ("near-duplicate or same text", lambda negative: bool(negative.duplicate)),
    "left": ("without flags", lambda negative: not negative.flags),
}
"""Filters of a list: a title, and a predicate. Further filters are the rules of views, and MARKED."""
MARKED = {"marked": ("marked as true matches", True), "rejected": ("marked as no match", False)}
"""Filters by marks: a title, and the mark."""
SHOWS = {"": "not marked", "all": "all", "marked": "marked"}
"""Filters of suspects."""


class Look(NamedTuple):
    """One table's list of an anchor."""

    table: OpenTable
    inspection: Inspection
    chosen: list[Negative]
    """Negatives that pass the filter."""
    ranks: dict[int, int]
    """Rank of every listed candidate, by row."""


class Answer(NamedTuple):
    """A candidate that a run finds for a query; the best has rank 1."""

    rank: int
    row: int
    score: float
    is_right: bool


def filters(tables: Sequence[OpenTable]) -> dict[str, str]:
    """Titles of the filters of these tables' lists."""
    rules = [rule for table in tables for rule in table.rules]
    titles = {name: title for name, (title, _) in FILTERS.items() if rules or name != "left"}
    titles |= {rule: f"flag: {rule}" for rule in rules}
    return titles | {name: title for name, (title, _) in MARKED.items()}


def look(table: OpenTable, train: Album, kind: Kind, anchor: int, show: str, marks: Marks) -> Look:
    """Inspect the whole list, since filters depend on the negatives' details."""
    listed = table.lists[DIRECTIONS[kind]][anchor]
    places = np.flatnonzero(listed.negative_ids >= 0)
    inspection = inspect_list(listed, train.split, places, table.store)

    def is_chosen(negative: Negative) -> bool:
        if show in MARKED:
            pair = (anchor, negative.row) if kind == "image" else (negative.row, anchor)
            return marks.of(*pair) is MARKED[show][1]
        return FILTERS[show][1](negative) if show in FILTERS else show in negative.flags

    chosen = [negative for negative in inspection.negatives if is_chosen(negative)]
    return Look(table, inspection, chosen, {negative.row: negative.rank for negative in inspection.negatives})


def answers(run: Evaluated, kind: Kind, query: int) -> list[Answer]:
    """List all candidates, best first; among ties the right ones come last, as recalls count them."""
    split = run.album.split
    scores = np.asarray(run.similarity[query] if kind == "image" else run.similarity[:, query])
    is_right = np.isin(np.arange(len(scores)), split.answers_of(DIRECTIONS[kind], query))
    order = np.lexsort((is_right, -scores))
    ranked = zip(order.tolist(), scores[order].tolist(), is_right[order].tolist(), strict=True)
    return [Answer(rank, *candidate) for rank, candidate in enumerate(ranked, start=1)]


def add_common_pages(app: Flask, source: Source, marks: Marks | None) -> None:
    """Add the start page and the pictures."""
    albums = {album.key: album for album in (source.train, *(run.album for run in source.evaluations)) if album}

    @app.get("/")
    def start() -> str:
        images = source.train.split.image_count if source.train else 0
        page = requested_page(images, PICTURES)
        numbers, unmarked = [0], 0
        if source.tables and marks is not None:
            numbers = requested_numbers("table", source.tables)
            unmarked = sum(marks.of(*pair) is None for pair in source.tables[numbers[0]].suspected_pairs)
        shown = {"page": page, "images": page.cut(range(images)), "metrics": METRICS}
        return render_template("start.html.j2", numbers=numbers, unmarked=unmarked, **shown)

    @app.get("/picture/<name>/<row>")
    def picture(name: str, row: str) -> Response:
        if name not in albums:
            abort(404, f"there are no pictures of {name[:60]}; choose one of {', '.join(albums)}.")
        found = albums[name].pictures.read(parse_row(albums[name], "image", row))
        content, kind = (NO_PICTURE, "image/svg+xml") if found is None else (found.content, found.media_type)
        return Response(content, mimetype=kind, headers={"Cache-Control": f"private, max-age={PICTURE_SECONDS}"})


def add_anchor_pages(app: Flask, train: Album, tables: Sequence[OpenTable], marks: Marks) -> None:
    """Add the pages of the training split and its tables."""

    @app.get("/search")
    def search() -> str:
        query = request.args.get("q", "").strip()
        rows = train.texts.rows(query)
        page = requested_page(len(rows), ENTRIES)
        return render_template("search.html.j2", query=query, page=page, rows=page.cut(rows))

    @app.get("/<any(image, caption):kind>/<row>")
    def anchor(kind: Kind, row: str) -> str:
        number, numbers = parse_row(train, kind, row), requested_numbers("table", tables)
        titles = filters([tables[n] for n in numbers])
        show = requested_choice(request.args, "show", titles)
        looks = [look(tables[n], train, kind, number, show, marks) for n in numbers]
        page = requested_page(max(len(one.chosen) for one in looks), ENTRIES)
        shown = {"looks": looks, "page": page, "numbers": numbers, "filters": titles, "show": show}
        return render_template("anchor.html.j2", kind=kind, other=OTHER[kind], row=number, **shown)

    @app.get("/<any(image, caption):kind>/<row>/listed")
    def listed(kind: Kind, row: str) -> str:
        number, numbers = parse_row(train, kind, row), requested_numbers("table", tables)
        lists = tables[numbers[0]].lists[DIRECTIONS[OTHER[kind]]]
        found = lists.listings(number)
        shown = {"lists": lists, "found": found, "page": requested_page(len(found), ENTRIES), "numbers": numbers}
        return render_template("listed.html.j2", kind=kind, other=OTHER[kind], row=number, **shown)


def add_marking_pages(app: Flask, train: Album, tables: Sequence[OpenTable], marks: Marks) -> None:
    """Add the pages that show suspects, and that mark pairs."""

    @app.get("/suspects")
    def suspects() -> str:
        numbers, show = requested_numbers("table", tables), requested_choice(request.args, "show", SHOWS)
        table = tables[numbers[0]]
        is_marked = [marks.of(*pair) is not None for pair in table.suspected_pairs]
        shown = [row for row, marked in enumerate(is_marked) if show == "all" or marked == (show == "marked")]
        page = requested_page(len(shown), ENTRIES)
        rows = table.suspects[page.cut(shown)].tolist()
        about = {"total": len(is_marked), "marked": sum(is_marked), "shows": SHOWS, "show": show}
        return render_template("suspects.html.j2", numbers=numbers, page=page, rows=rows, **about)

    @app.post("/mark")
    def mark() -> Redirect:
        form = request.form
        image = parse_row(train, "image", form.get("image", ""))
        caption = parse_row(train, "caption", form.get("caption", ""))
        if train.split.are_paired(image, caption):
            abort(400, f"caption {caption} belongs to image {image}, so there is nothing to mark.")
        back = form.get("back", "/")
        if not back.startswith("/") or back.startswith(("//", "/\\")) or not (back.isascii() and back.isprintable()):
            abort(400, "a mark leads back to a page of this server only.")
        judgements = {"yes": True, "no": False, "none": None}
        judgement, answer = judgements[requested_choice(form, "match", judgements)], redirect(back, 303)
        # Last: a refused request must not have written anything.
        marks.say(image, caption, judgement, back)
        return answer

    @app.post("/undo")
    def undo() -> Redirect:
        back = marks.undo()
        if back is None:
            abort(400, "this server has no mark to undo.")
        return redirect(back, 303)

    @app.get("/agreement")
    def agreement() -> str:
        return render_template("agreement.html.j2", found=marks.agreements())


def add_query_pages(app: Flask, runs: Sequence[Evaluated]) -> None:
    """Add the pages of evaluations: their queries, and the answers of one or two runs."""

    @app.get("/queries")
    def queries() -> str:
        numbers = requested_numbers("run", runs)
        album = runs[numbers[0]].album
        query = request.args.get("q", "").strip()
        rows = album.texts.rows(query) if query else range(album.split.image_count)
        page = requested_page(len(rows), PICTURES)
        shown = {"album": album, "query": query, "page": page, "rows": page.cut(rows)}
        return render_template("queries.html.j2", numbers=numbers, **shown)

    @app.get("/query/<any(image, caption):kind>/<row>")
    def query(kind: Kind, row: str) -> str:
        numbers = requested_numbers("run", runs)
        chosen = [runs[n] for n in numbers]
        album = chosen[0].album
        if chosen[-1].album is not album:
            abort(400, f"{chosen[0].name} and {chosen[-1].name} answered different queries; choose one of them.")
        number = parse_row(album, kind, row)
        found = [(run.name, answers(run, kind, number)) for run in chosen]
        shown = {"album": album, "found": found, "page": requested_page(len(found[0][1]), ANSWERS), "numbers": numbers}
        return render_template("query.html.j2", kind=kind, other=OTHER[kind], row=number, **shown)
