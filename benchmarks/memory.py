"""Peak memory of a block of code."""

from __future__ import annotations

import threading
from pathlib import Path


class Peak:
    """Peak anonymous memory beyond that at the start, sampled every 10 ms."""

    def __enter__(self) -> Peak:
        self._start, self._most, self._done = anonymous(), 0, threading.Event()
        self._watch = threading.Thread(target=self._look, daemon=True)
        self._watch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._watch.join()

    def _look(self) -> None:
        while not self._done.wait(0.01):
            self._most = max(self._most, anonymous())

    @property
    def bytes(self) -> int:
        return max(0, self._most - self._start)


def anonymous() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status has no RssAnon; this benchmark needs Linux.")
