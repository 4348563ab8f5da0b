"""Progress: a bar on a terminal, a log line every half minute elsewhere."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

logger = logging.getLogger(__name__)

QUIET_SECONDS = 30.0

Report = Callable[[int, int, str], None]


@contextmanager
def show_progress(title: str) -> Iterator[Report]:
    """Yield a function to call with (done, total, text)."""
    if not sys.stderr.isatty():
        last = time.monotonic()

        def log(done: int, total: int, text: str) -> None:
            nonlocal last
            if time.monotonic() - last >= QUIET_SECONDS:
                last = time.monotonic()
                logger.info("%s: %d of %d  %s", title, done, total, text)

        yield log
        return
    about, text = TextColumn("{task.description}"), TextColumn("{task.fields[text]}")
    columns = about, BarColumn(), text, TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task(title, total=None, text="")

        def report(done: int, total: int, text: str) -> None:
            progress.update(bar, completed=done, total=total, text=text)

        yield report
