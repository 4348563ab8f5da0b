"""Pages about the evaluation split: its queries, and what one or two runs answer."""

from __future__ import annotations

from collections.abc import Sequence

from flask import Blueprint, render_template, request

from aoq.pipeline.browse.addresses import CANDIDATES, DIRECTIONS, Kind, asked_numbers, asked_page, named_row
from aoq.pipeline.browse.answers import answers
from aoq.pipeline.browse.paging import BadQueryError
from aoq.pipeline.browse.source import Evaluated

QUERIES = 60
ANSWERS = 20


def query_pages(runs: Sequence[Evaluated]) -> Blueprint:
    pages = Blueprint("evaluated", __name__)

    @pages.get("/queries")
    def queries() -> str:
        numbers = asked_numbers("run", runs)
        album = runs[numbers[0]].album
        query = request.args.get("q", "")
        rows = album.texts.rows(query) if query else range(album.split.image_count)
        page = asked_page(len(rows), QUERIES)
        shown = {"album": album, "query": query, "page": page, "rows": page.cut(rows), "runs": runs}
        return render_template("queries.html.j2", numbers=numbers, **shown)

    @pages.get("/query/<any(image, caption):kind>/<row>")
    def query(kind: Kind, row: str) -> str:
        numbers = asked_numbers("run", runs)
        chosen = [runs[n] for n in numbers]
        album = chosen[0].album
        if chosen[-1].album is not album:
            raise BadQueryError(f"{chosen[0].name} and {chosen[-1].name} answered other queries; choose one of them.")
        number = named_row(album, kind, row)
        found = [answers(run, DIRECTIONS[kind], number) for run in chosen]
        page = asked_page(len(found[0]), ANSWERS)
        shown = {"album": album, "found": found, "page": page, "runs": runs, "numbers": numbers}
        return render_template("query.html.j2", kind=kind, other=CANDIDATES[kind], row=number, **shown)

    return pages
