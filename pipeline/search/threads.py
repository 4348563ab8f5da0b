"""Work on ranges of rows, shared among torch's number of threads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from aoq.pipeline.search.brute_force import has_faiss, load_faiss

PARTS = 4  # per thread, so that one slow part delays little


def use_threads(count: int) -> None:
    """Let torch, FAISS and `in_parallel` use `count` threads in this process."""
    torch.set_num_threads(count)
    if has_faiss():
        load_faiss().omp_set_num_threads(count)


def in_parallel(function: Callable[..., Any], count: int, *arguments: Any, parts: int = PARTS) -> list[tuple[int, int]]:
    """Call function(start, stop, *arguments) for ranges that cover `count` rows, and these; it must release the GIL."""
    threads = torch.get_num_threads()
    edges = np.linspace(0, count, min(count, parts * threads) + 1, dtype=np.int64).tolist()
    ranges = list(pairwise(edges))
    if threads == 1:
        for rows in ranges:
            function(*rows, *arguments)
        return ranges
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda rows: function(*rows, *arguments), ranges))  # raises what a part raised
    return ranges
