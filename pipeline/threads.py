"""The number of threads of this process, and work on ranges of rows shared among them. Nothing here loads torch."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np

PARTS = 4  # per thread, so that one slow part delays little
_planned: list[int] = []


def use_threads(count: int) -> None:
    """Let torch and `in_parallel` use `count` threads in this process."""
    plan_threads(count)
    _load_torch().set_num_threads(count)


def plan_threads(count: int) -> None:
    """Let `in_parallel` use `count` threads in this process, and torch as well, once it is loaded."""
    _planned[:] = [count]
    if "torch" in sys.modules:
        _load_torch().set_num_threads(count)


def keep_threads() -> None:
    """Apply the planned number, if any, to torch, which was just loaded."""
    for count in _planned:
        plan_threads(count)


def thread_count() -> int:
    """Return torch's number of threads if it is loaded, else the planned number, or all that this process may use."""
    if "torch" in sys.modules:
        return int(_load_torch().get_num_threads())
    return _planned[0] if _planned else len(os.sched_getaffinity(0))


def _load_torch() -> Any:
    import torch

    return torch


def in_parallel(function: Callable[..., Any], count: int, *arguments: Any, parts: int = PARTS) -> list[tuple[int, int]]:
    """Call function(start, stop, *arguments) on ranges that cover `count` rows, and return the ranges.

    The function must release the GIL.
    """
    threads = thread_count()
    edges = np.linspace(0, count, min(count, parts * threads) + 1, dtype=np.int64).tolist()
    ranges = list(pairwise(edges))
    if threads == 1:
        for rows in ranges:
            function(*rows, *arguments)
        return ranges
    left = iter(ranges)

    def work() -> None:
        for rows in left:
            function(*rows, *arguments)

    with ThreadPoolExecutor(threads - 1) as pool:
        others = [pool.submit(work) for _ in range(threads - 1)]
        work()
        for other in others:
            other.result()  # raises the error of its thread, if any
    return ranges
