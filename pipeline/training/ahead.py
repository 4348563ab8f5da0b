"""Make batches in threads, ahead of the steps that take them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def made_ahead(make: Callable[[int], T], steps: Iterable[int], workers: int) -> Generator[T]:
    """Yield what `make` returns for each step, in order; with 0 workers it is made when it is taken.

    Memory holds `workers` + 1 besides the one that is taken. `make` is a pure function of the step, so nothing
    depends on the number of workers; what it raises is raised here when its step's turn comes. Close it to be rid of
    the threads: it waits for the steps that are being made, and drops the others.

    >>> list(made_ahead(lambda step: step**2, range(4), workers=2))
    [0, 1, 4, 9]
    """
    if not workers:
        yield from map(make, steps)
        return
    # Threads, since numpy lets others run while it copies. Processes of torch's DataLoader took as long or longer
    # (benchmarks/reading.py): what they read passes through shared memory, and a fork beside threads may hang.
    pool, waiting = ThreadPoolExecutor(workers, "batches"), deque[Future[T]]()
    try:
        for step in steps:
            waiting.append(pool.submit(make, step))
            if len(waiting) > workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
