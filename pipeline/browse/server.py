"""Serving on this machine alone."""

from __future__ import annotations

import errno
import socket

from flask import Flask
from werkzeug.serving import BaseWSGIServer, make_server

HOST = "127.0.0.1"


def open_port(port: int) -> socket.socket:
    """A socket that listens; port 0 is any free one."""
    try:
        return socket.create_server((HOST, port))
    except OSError as error:
        reason = "is in use by another program" if error.errno == errno.EADDRINUSE else f"cannot be had ({error})"
        raise OSError(f"port {port} {reason}; choose another with --port, 0 for any free one.") from None


def server_on(listening: socket.socket, app: Flask) -> BaseWSGIServer:
    """Answers many at a time; `serve_forever` ends with Ctrl-C."""
    with listening:
        return make_server(HOST, listening.getsockname()[1], app, threaded=True, fd=listening.fileno())
