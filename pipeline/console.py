"""The log and the progress of long work, on stderr."""

from __future__ import annotations

import logging
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from aoq.pipeline.engine import torchrun_rank
from aoq.pipeline.terminal import escape_what_the_terminal_lacks, visible

logger = logging.getLogger(__name__)

FAILED = re.compile(r"^\* (\d+ failed:\n(?: {4}.*\n)+)", re.MULTILINE)
QUIET_SECONDS = 30.0

Report = Callable[[int, int, str], None]
"""Called with (done, total, text)."""


def log_to_console() -> None:
    """Log our lines and Luigi's warnings to stderr; errors take one line, their traceback is in the work directory."""
    escape_what_the_terminal_lacks()
    root = logging.getLogger()
    if root.handlers:
        return
    handler = _Stderr()
    handler.setLevel(logging.ERROR if torchrun_rank() else logging.INFO)  # only the first process logs progress
    handler.setFormatter(_OneLine("%(asctime)s %(message)s", datefmt="%H:%M:%S"))
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    for name in ("luigi", "filelock", "faiss.loader", "werkzeug"):
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it warns when it first builds its font cache
    logging.getLogger("luigi-interface").addFilter(_is_failure)


@contextmanager
def show_progress(title: str) -> Iterator[Report]:
    """Show a bar on a terminal; elsewhere, log a line every half minute."""
    if not sys.stderr.isatty():
        last = time.monotonic()

        def log(done: int, total: int, text: str) -> None:
            nonlocal last
            if time.monotonic() - last >= QUIET_SECONDS:
                last = time.monotonic()
                logger.info("%s: %d of %d %s", title, done, total, text)

        yield log
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    plain = partial(TextColumn, markup=False)
    columns = plain("{task.description}"), BarColumn(), plain("{task.fields[text]}"), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task(visible(title), total=None, text="")
        yield lambda done, total, text: progress.update(bar, completed=done, total=total, text=text)


def _is_failure(record: logging.LogRecord) -> bool:
    """Pass Luigi's warnings, and the failed tasks of its summary, if any."""
    if record.levelno >= logging.WARNING:
        return True
    failed = FAILED.search(record.getMessage())
    if failed is not None:
        record.msg, record.args = failed[1].rstrip(), ()
    return failed is not None


class _Stderr(logging.Handler):
    """Write to the current sys.stderr: a progress bar replaces it so that lines appear above the bar."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            sys.stderr.write(self.format(record) + "\n")
        except Exception:
            self.handleError(record)


class _OneLine(logging.Formatter):
    """User errors print one line; bugs keep their traceback. Neither can control the terminal."""

    def format(self, record: logging.LogRecord) -> str:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, (ValueError, OSError, ImportError)):
            return visible(f"{self.formatTime(record, self.datefmt)} error: {error}")
        return visible(super().format(record))
