"""Pages about the training split: search, anchors with their lists, where one is listed, and marking."""

from __future__ import annotations

from collections.abc import Sequence

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
from aoq.pipeline.browse.anchors import filters, look
from aoq.pipeline.browse.matches import Matches
from aoq.pipeline.browse.paging import BadQueryError
from aoq.pipeline.browse.source import Album, OpenTable

ENTRIES = 50


def anchor_pages(train: Album, tables: Sequence[OpenTable], matches: Matches) -> Blueprint:
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
        looks = [look(tables[n], train.split, DIRECTIONS[kind], number, show, matches) for n in numbers]
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
            raise BadQueryError(f"caption {caption} is image {image}'s own, so there is nothing to mark.")
        back = form.get("back", "/")
        if not back.startswith("/") or back.startswith(("//", "/\\")):
            abort(400, "a mark leads back to a page of this server only.")
        matches.mark(image, caption, is_match=asked_choice(form, "match", ("yes", "no")) == "yes")
        return redirect(back, 303)

    return pages
