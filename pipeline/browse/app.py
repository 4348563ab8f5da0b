"""The application, on this machine alone: who may ask, the start page and pictures, errors, and the port."""

from __future__ import annotations

import errno
import logging
import secrets
import socket
from hmac import compare_digest

from flask import Flask, Response, abort, render_template, request
from jinja2 import StrictUndefined
from werkzeug.exceptions import HTTPException
from werkzeug.serving import BaseWSGIServer, make_server

from aoq.pipeline.browse.addresses import asked_page, here, named_row
from aoq.pipeline.browse.anchors import anchor_pages
from aoq.pipeline.browse.matches import Matches
from aoq.pipeline.browse.queries import query_pages
from aoq.pipeline.browse.source import Source
from aoq.pipeline.evaluation.significance import METRICS

logger = logging.getLogger(__name__)

HOST = "127.0.0.1"
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; img-src 'self' data:; style-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}
LARGEST_FORM = 1 << 16
GRID = 60
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
    _guard(app, port)
    _show_errors(app)
    _add_pages(app, source)
    if source.evaluations:
        app.register_blueprint(query_pages(source.evaluations))
    if source.train is not None and matches is not None:
        app.register_blueprint(anchor_pages(source.train, source.tables, matches))
    return app


def _guard(app: Flask, port: int) -> None:
    """Refuse requests under other names (a page elsewhere whose name leads here), and what other pages post."""
    hosts = [f"{name}:{port}".removesuffix(":80") for name in (HOST, "localhost")]
    token = secrets.token_urlsafe()
    app.config["MAX_CONTENT_LENGTH"] = LARGEST_FORM
    app.jinja_env.globals["token"] = token

    @app.before_request
    def check_request() -> None:
        if request.host not in hosts:
            abort(403, f"this address is not served here; open http://{hosts[0]}/")
        if request.method == "POST":
            own = request.host_url.rstrip("/")
            given = request.form.get("token", "")
            if request.headers.get("Origin", own) != own or not compare_digest(given.encode(), token.encode()):
                abort(403, "this form is not from a page of the server that runs now; load the page again.")

    @app.after_request
    def add_headers(answer: Response) -> Response:
        answer.headers.update(HEADERS)
        answer.headers.setdefault("Cache-Control", "no-cache")
        return answer


def _show_errors(app: Flask) -> None:
    @app.errorhandler(HTTPException)
    def refused(error: HTTPException) -> tuple[str, int]:
        return render_template("error.html.j2", title=error.name, message=error.description), error.code or 500

    @app.errorhandler(OSError)
    @app.errorhandler(ValueError)
    def damaged(error: Exception) -> tuple[str, int]:
        logger.exception("%s", request.path)
        return render_template("error.html.j2", title="This cannot be shown", message=str(error)), 500


def _add_pages(app: Flask, source: Source) -> None:
    albums = source.albums

    @app.get("/")
    def start() -> str:
        images = source.train.split.image_count if source.train else 0
        page = asked_page(images, GRID)
        return render_template("start.html.j2", page=page, images=page.cut(range(images)), metrics=METRICS)

    @app.get("/picture/<name>/<row>")
    def picture(name: str, row: str) -> Response:
        if name not in albums:
            abort(404, f"pictures of {name[:60]}: there are those of {', '.join(albums)}.")
        found = albums[name].pictures.read(named_row(albums[name], "image", row))
        content, kind = (NO_PICTURE, "image/svg+xml") if found is None else (found.content, found.media_type)
        return Response(content, mimetype=kind, headers={"Cache-Control": f"private, max-age={PICTURE_SECONDS}"})


def open_port(port: int) -> socket.socket:
    """A socket that listens; port 0 is any free one."""
    try:
        return socket.create_server((HOST, port))
    except OSError as error:
        reason = "is in use by another program" if error.errno == errno.EADDRINUSE else f"cannot be had ({error})"
        raise OSError(f"port {port} {reason}; choose another with --port, 0 for any free one.") from None


def server_on(listening: socket.socket, app: Flask) -> BaseWSGIServer:
    """A server that answers many at a time; `serve_forever` ends with Ctrl-C."""
    with listening:
        return make_server(HOST, listening.getsockname()[1], app, threaded=True, fd=listening.fileno())
