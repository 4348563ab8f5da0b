"""Pages about the evaluation split: its queries, and what one or two runs answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from flask import Blueprint, abort, render_template, request

from aoq.pipeline.browse.addresses import CANDIDATES, DIRECTIONS, Kind, asked_numbers, asked_page, named_row
from aoq.pipeline.browse.source import Evaluated
from aoq.pipeline.search.problem import Direction

QUERIES = 60
ANSWERS = 20


class Answer(NamedTuple):
    """A candidate that a run finds for a query; the best has rank 1."""

    rank: int
    row: int
    score: float
    is_right: bool


def answers(run: Evaluated, direction: Direction, query: int) -> list[Answer]:
    """All candidates, best first; of equal scores the right ones come last, as recalls count them."""
    image_of = run.album.split.image_of
    scores = np.asarray(run.similarity[query] if direction == "i2t" else run.similarity[:, query])
    is_right = image_of == query if direction == "i2t" else np.arange(len(scores)) == image_of[query]
    order = np.lexsort((is_right, -scores))
    ranked = zip(order.tolist(), scores[order].tolist(), is_right[order].tolist(), strict=True)
    return [Answer(rank, *found) for rank, found in enumerate(ranked, start=1)]


def query_pages(runs: Sequence[Evaluated]) -> Blueprint:
    """The addresses under /queries and /query."""
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
            abort(400, f"{chosen[0].name} and {chosen[-1].name} answered other queries; choose one of them.")
        number = named_row(album, kind, row)
        found = [(run.name, answers(run, DIRECTIONS[kind], number)) for run in chosen]
        page = asked_page(len(found[0][1]), ANSWERS)
        shown = {"album": album, "found": found, "page": page, "runs": runs, "numbers": numbers}
        return render_template("query.html.j2", kind=kind, other=CANDIDATES[kind], row=number, **shown)

    return pages
