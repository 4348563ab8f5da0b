"""Pages about the training split: search, an anchor's lists, where an item is listed, and marking."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from flask import Blueprint, abort, redirect, render_template, request
from werkzeug.wrappers import Response

from aoq.pipeline.browse.addresses import (
    CANDIDATES,
    DIRECTIONS,
    Kind,
    asked_choice,
    asked_numbers,
    asked_page,
    named_row,
)
from aoq.pipeline.browse.matches import Matches
from aoq.pipeline.browse.source import Album, OpenTable
from aoq.pipeline.tables.inspection import Inspection, Negative, inspect_list

ENTRIES = 50
FILTERS: dict[str, tuple[str, Callable[[Negative], bool]]] = {
    "": ("all", lambda negative: True),
    "above": ("as similar as a positive", lambda negative: negative.above_positive),
    "duplicate": ("near-duplicate or same text", lambda negative: bool(negative.duplicate)),
    "left": ("without flags", lambda negative: not negative.flags),
}
"""What a list can be narrowed to besides a rule's flags and MARKED: a title, and what is kept."""
MARKED = "marked"


@dataclass(frozen=True)
class Look:
    """One table's list of an anchor."""

    table: OpenTable
    inspection: Inspection
    chosen: list[Negative]
    """Those that the filter leaves."""
    ranks: dict[int, int]
    """The rank of every listed candidate, by row."""


def filters(tables: Sequence[OpenTable]) -> dict[str, str]:
    """What these tables' lists can be narrowed to, with a title for each."""
    rules = [rule for table in tables for rule in table.rules]
    general = {name: title for name, (title, _) in FILTERS.items() if rules or name != "left"}
    return {**general, **{rule: f"flag: {rule}" for rule in rules}, MARKED: "marked as true matches"}


def look(table: OpenTable, train: Album, kind: Kind, anchor: int, show: str, matches: Matches) -> Look:
    """Inspect the whole list, since filters ask for what its negatives say."""
    listed = table.lists[DIRECTIONS[kind]][anchor]
    places = np.flatnonzero(listed.negative_ids >= 0)
    inspection = inspect_list(listed, train.split, places, table.store)

    def is_chosen(negative: Negative) -> bool:
        if show == MARKED:
            return ((anchor, negative.row) if kind == "image" else (negative.row, anchor)) in matches
        return FILTERS[show][1](negative) if show in FILTERS else show in negative.flags

    chosen = [negative for negative in inspection.negatives if is_chosen(negative)]
    return Look(table, inspection, chosen, {negative.row: negative.rank for negative in inspection.negatives})


def anchor_pages(train: Album, tables: Sequence[OpenTable], matches: Matches) -> Blueprint:
    """The addresses under /search, /image, /caption and /mark."""
    pages = Blueprint("train", __name__)

    @pages.get("/search")
    def search() -> str:
        query = request.args.get("q", "")
        rows = train.texts.rows(query)
        page = asked_page(len(rows), ENTRIES)
        return render_template("search.html.j2", query=query, page=page, rows=page.cut(rows))

    @pages.get("/<any(image, caption):kind>/<row>")
    def anchor(kind: Kind, row: str) -> str:
        number, numbers = named_row(train, kind, row), asked_numbers("table", tables)
        known = filters([tables[n] for n in numbers])
        show = asked_choice(request.args, "show", known)
        looks = [look(tables[n], train, kind, number, show, matches) for n in numbers]
        page = asked_page(max(len(one.chosen) for one in looks), ENTRIES)
        shown = {"looks": looks, "page": page, "tables": tables, "numbers": numbers, "filters": known, "show": show}
        return render_template("anchor.html.j2", kind=kind, other=CANDIDATES[kind], row=number, **shown)

    @pages.get("/<any(image, caption):kind>/<row>/listed")
    def listed(kind: Kind, row: str) -> str:
        number, numbers = named_row(train, kind, row), asked_numbers("table", tables)
        lists = tables[numbers[0]].lists[DIRECTIONS[CANDIDATES[kind]]]
        found = lists.listings(number)
        page = asked_page(len(found), ENTRIES)
        shown = {"lists": lists, "found": found, "page": page, "tables": tables, "numbers": numbers}
        return render_template("listed.html.j2", kind=kind, other=CANDIDATES[kind], row=number, **shown)

    @pages.post("/mark")
    def mark() -> Response:
        form = request.form
        image = named_row(train, "image", form.get("image", ""))
        caption = named_row(train, "caption", form.get("caption", ""))
        if train.split.image_of[caption] == image:
            abort(400, f"caption {caption} is image {image}'s own, so there is nothing to mark.")
        back = form.get("back", "/")
        if not back.startswith("/") or back.startswith(("//", "/\\")):
            abort(400, "a mark leads back to a page of this server only.")
        matches.mark(image, caption, is_match=asked_choice(form, "match", ("yes", "no")) == "yes")
        return redirect(back, 303)

    return pages
