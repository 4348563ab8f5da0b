"""Prevent orphans: a task's process dies with its parent, however the parent ends."""

from __future__ import annotations

import signal
from contextlib import nullcontext

from aoq.pipeline.engine import die_with_parent


class DieWithParent(nullcontext[object]):
    """Luigi's `task_process_context`, entered in the fork before the task runs (Linux)."""

    def __enter__(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        die_with_parent(signal.SIGTERM)
