"""What the console shows of the log."""

from __future__ import annotations

import logging
import re
import sys

from aoq.pipeline.engine import torchrun_rank
from aoq.pipeline.terminal import escape_what_the_terminal_lacks, visible

FAILED = re.compile(r"^\* (\d+ failed:\n(?: {4}.*\n)+)", re.MULTILINE)


def log_to_console() -> None:
    """Log our lines and Luigi's warnings to stderr; errors as one line, their traceback in the work directory."""
    escape_what_the_terminal_lacks()
    root = logging.getLogger()
    if root.handlers:
        return
    handler = _Stderr()
    handler.setLevel(logging.ERROR if torchrun_rank() else logging.INFO)  # the first of several speaks for all
    handler.setFormatter(_OneLine("%(asctime)s %(message)s", datefmt="%H:%M:%S"))
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    for name in ("luigi", "filelock", "faiss.loader", "werkzeug"):
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it tells that it looks for fonts, the first time
    logging.getLogger("luigi-interface").addFilter(_of_failures)


def _of_failures(record: logging.LogRecord) -> bool:
    """Pass Luigi's warnings, and the failed tasks of its summary, if any."""
    if record.levelno >= logging.WARNING:
        return True
    failed = FAILED.search(record.getMessage())
    if failed is not None:
        record.msg, record.args = failed[1].rstrip(), ()
    return failed is not None


class _Stderr(logging.Handler):
    """The current sys.stderr, which a progress bar replaces so that lines go above the bar."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            sys.stderr.write(self.format(record) + "\n")
        except Exception:
            self.handleError(record)


class _OneLine(logging.Formatter):
    """User errors print one line; bugs keep their traceback; nothing in either is obeyed by the terminal."""

    def format(self, record: logging.LogRecord) -> str:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, (ValueError, OSError, ImportError)):
            return visible(f"{self.formatTime(record, self.datefmt)} error: {error}")
        return visible(super().format(record))
