"""The web application and its server, reachable from this machine only."""

from __future__ import annotations

import errno
import logging
import secrets
import socket
from hmac import compare_digest

from flask import Flask, Response, abort, render_template, request
from jinja2 import StrictUndefined
from werkzeug.exceptions import HTTPException
from werkzeug.serving import BaseWSGIServer, WSGIRequestHandler, make_server

from aoq.pipeline.browse.marks import Marks
from aoq.pipeline.browse.pages import add_anchor_pages, add_common_pages, add_query_pages, here
from aoq.pipeline.browse.source import Gallery
from aoq.pipeline.browse.survey import MOST_SUSPECTS
from aoq.pipeline.console import visible_value

logger = logging.getLogger(__name__)

HOST = "127.0.0.1"
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; img-src 'self' data:; style-src 'self'; script-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}
LARGEST_FORM = 1 << 16
_PATIENCE = 10.0
"""Seconds of silence allowed to a client."""


class _Handler(WSGIRequestHandler):
    """End silent connections, and log client errors below the level that the console shows."""

    timeout = _PATIENCE

    def version_string(self) -> str:
        """Name no versions."""
        return "aoq"

    def log_error(self, format: str, *args: object) -> None:  # noqa: A002  (named by http.server)
        self.log("info", format, *args)


def create_app(source: Gallery, marks: Marks | None, port: int) -> Flask:
    """Create the application for this port; `marks` is None if there are no tables."""
    app = Flask(__name__)
    app.jinja_options = {"autoescape": True, "undefined": StrictUndefined, "finalize": visible_value}
    app.jinja_options |= {"trim_blocks": True, "lstrip_blocks": True}
    app.jinja_env.globals.update(source=source, marks=marks, here=here, most_suspects=MOST_SUSPECTS)
    app.jinja_env.filters["thousands"] = "{:,}".format
    _guard(app, port)

    @app.errorhandler(HTTPException)
    def refused(error: HTTPException) -> tuple[str, int]:
        return render_template("error.html.j2", title=error.name, message=error.description), error.code or 500

    @app.errorhandler(OSError)
    @app.errorhandler(ValueError)
    def damaged(error: Exception) -> tuple[str, int]:
        logger.exception("%s", request.path)
        return render_template("error.html.j2", title="This cannot be shown", message=str(error)), 500

    add_common_pages(app, source, marks)
    if source.evaluations:
        add_query_pages(app, source.evaluations)
    if source.train is not None and marks is not None:
        add_anchor_pages(app, source.train, source.tables, marks)
    return app


def _guard(app: Flask, port: int) -> None:
    """Refuse requests under other host names, which may resolve to this machine, and forms from other pages."""
    hosts = [f"{name}:{port}".removesuffix(":80") for name in (HOST, "localhost")]
    token = secrets.token_urlsafe()
    app.config["MAX_CONTENT_LENGTH"] = LARGEST_FORM
    app.jinja_env.globals["token"] = token

    @app.before_request
    def check_request() -> None:
        if "HTTP_HOST" not in request.environ or request.host not in hosts:
            abort(403, f"this server does not answer under that name; open http://{hosts[0]}/")
        if request.method == "POST":
            own = request.host_url.rstrip("/")
            sent = request.form.get("token", "")
            if request.headers.get("Origin", own) != own or not compare_digest(sent.encode(), token.encode()):
                abort(403, "this form is not from a page of the running server; load the page again.")

    @app.after_request
    def add_headers(answer: Response) -> Response:
        answer.headers.update(HEADERS)
        answer.headers.setdefault("Cache-Control", "no-cache")
        return answer


def open_server(source: Gallery, marks: Marks | None, port: int) -> BaseWSGIServer:
    """Open a threaded server on the port, 0 for any free one; `serve_forever` ends with Ctrl-C."""
    try:
        listening = socket.create_server((HOST, port))
    except OSError as error:
        reason = "is in use by another program" if error.errno == errno.EADDRINUSE else f"cannot be opened ({error})"
        raise OSError(f"port {port} {reason}; choose another with --port, 0 for any free one.") from None
    with listening:
        chosen = listening.getsockname()[1]
        app = create_app(source, marks, chosen)
        return make_server(HOST, chosen, app, threaded=True, request_handler=_Handler, fd=listening.fileno())
