"""Who may ask, and what a page may do: this machine's own pages only, and nothing but what they are made of."""

from __future__ import annotations

import secrets
from hmac import compare_digest

from flask import Flask, Response, abort, request

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; img-src 'self' data:; style-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}
LARGEST_FORM = 1 << 16


def guard(app: Flask, port: int) -> None:
    """Refuse requests under other names (a page elsewhere whose name leads here), and what other pages post."""
    hosts = [f"{name}:{port}".removesuffix(":80") for name in ("127.0.0.1", "localhost")]
    token = secrets.token_urlsafe()
    app.config["MAX_CONTENT_LENGTH"] = LARGEST_FORM
    app.jinja_env.globals["token"] = token

    @app.before_request
    def check_request() -> None:
        if request.host not in hosts:
            abort(403, f"this address is not served here; open http://{hosts[0]}/")
        if request.method == "POST":
            origin = request.headers.get("Origin", request.host_url.rstrip("/"))
            if origin != request.host_url.rstrip("/") or not compare_digest(
                request.form.get("token", "").encode(), token.encode()
            ):
                abort(403, "this form is not from a page of the server that runs now; load the page again.")

    @app.after_request
    def add_headers(answer: Response) -> Response:
        answer.headers.update(HEADERS)
        answer.headers.setdefault("Cache-Control", "no-cache")
        return answer
