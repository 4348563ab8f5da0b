"""No orphans: a task's process dies with the one that started it, however that one ends."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from types import TracebackType

PR_SET_PDEATHSIG = 1


class DieWithParent:
    """Luigi's `task_process_context`: entered in the forked process before the task runs (Linux)."""

    def __init__(self, task_process: object) -> None:
        self._parent = os.getppid()

    def __enter__(self) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() == 1:  # the parent went before we asked
                os.kill(os.getpid(), signal.SIGTERM)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None
