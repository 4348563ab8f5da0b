"""Prevent orphans: a process dies with its parent, however that one ends."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def die_with_parent(how: signal.Signals = signal.SIGKILL) -> None:
    """Ask the kernel for this signal when the parent ends (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, how)
        parent = multiprocessing.parent_process()
        if parent is not None and os.getppid() != parent.pid:  # the parent ended before the request
            os.kill(os.getpid(), how)
