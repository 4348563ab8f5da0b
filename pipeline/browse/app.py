"""The pages: start, search, pictures; anchors and queries have files of their own."""

from __future__ import annotations

import logging

from flask import Flask, Response, abort, render_template, request
from jinja2 import StrictUndefined
from werkzeug.exceptions import HTTPException

from aoq.pipeline.browse.addresses import asked_page, here, named_row
from aoq.pipeline.browse.anchor_pages import anchor_pages
from aoq.pipeline.browse.guard import guard
from aoq.pipeline.browse.matches import Matches
from aoq.pipeline.browse.paging import BadQueryError
from aoq.pipeline.browse.query_pages import query_pages
from aoq.pipeline.browse.source import Source
from aoq.pipeline.evaluation.retrieval import K

logger = logging.getLogger(__name__)

GRID = 60
METRICS = [f"{direction}_r{k}" for direction in ("i2t", "t2i") for k in K] + ["rsum"]
PICTURE_SECONDS = 3600
NO_PICTURE = (
    b'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 120 90"><rect width="120" height="90" fill="#8884"/><text '
    b'x="60" y="49" font-size="12" text-anchor="middle" font-family="sans-serif" fill="#888">no picture</text></svg>'
)


def create_app(source: Source, matches: Matches | None, port: int) -> Flask:
    """The application that answers on this port; without tables there is nothing to mark."""
    app = Flask(__name__)
    app.jinja_options = {"autoescape": True, "undefined": StrictUndefined, "trim_blocks": True, "lstrip_blocks": True}
    app.jinja_env.globals.update(source=source, matches=matches, here=here)
    app.jinja_env.filters["thousands"] = "{:,}".format
    guard(app, port)
    _say_errors(app)
    _add_start(app, source)
    _add_pictures(app, source)
    if source.evaluations:
        app.register_blueprint(query_pages(source.evaluations))
    if source.train is not None and matches is not None:
        app.register_blueprint(anchor_pages(source.train, source.tables, matches))
    return app


def _say_errors(app: Flask) -> None:
    @app.errorhandler(HTTPException)
    def refused(error: HTTPException) -> tuple[str, int]:
        return render_template("error.html.j2", title=error.name, message=error.description), error.code or 500

    @app.errorhandler(BadQueryError)
    def bad_query(error: BadQueryError) -> tuple[str, int]:
        return render_template("error.html.j2", title="Bad request", message=str(error)), 400

    @app.errorhandler(OSError)
    @app.errorhandler(ValueError)
    def damaged(error: Exception) -> tuple[str, int]:
        logger.exception("%s", request.path)
        return render_template("error.html.j2", title="This cannot be shown", message=str(error)), 500


def _add_start(app: Flask, source: Source) -> None:
    @app.get("/")
    def start() -> str:
        images = source.train.split.image_count if source.train else 0
        page = asked_page(images, GRID)
        return render_template("start.html.j2", page=page, images=page.cut(range(images)), metrics=METRICS)


def _add_pictures(app: Flask, source: Source) -> None:
    albums = source.albums

    @app.get("/picture/<name>/<row>")
    def picture(name: str, row: str) -> Response:
        if name not in albums:
            abort(404, f"pictures of {name[:60]}: there are those of {', '.join(albums)}.")
        found = albums[name].pictures.read(named_row(albums[name], "image", row))
        content, kind = (NO_PICTURE, "image/svg+xml") if found is None else (found.content, found.media_type)
        headers = {"Cache-Control": f"private, max-age={PICTURE_SECONDS}"}
        return Response(content, mimetype=kind, headers=headers)
