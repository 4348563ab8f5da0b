"""Progress: a bar on a terminal, a log line every half minute elsewhere."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from aoq.pipeline.terminal import visible

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
                logger.info("%s: %d of %d %s", title, done, total, text)

        yield log
        return
    words = partial(TextColumn, markup=False)
    columns = words("{task.description}"), BarColumn(), words("{task.fields[text]}"), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task(visible(title), total=None, text="")
        yield lambda done, total, text: progress.update(bar, completed=done, total=total, text=text)
