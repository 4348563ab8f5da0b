"""Pairs in the order of their anchors."""

from __future__ import annotations

from typing import Any, no_type_check

import numpy as np
from jaxtyping import Int32
from numba import njit


def group(anchors: Int32[np.ndarray, " pairs"], count: int, *columns: np.ndarray) -> tuple[np.ndarray, ...]:
    """Offsets of the `count` anchors' pairs, and the columns in that order; of one anchor, as they came.

    >>> [part.tolist() for part in group(np.int32([2, 0, 2]), 3, np.int32([5, 6, 7]))]
    [[0, 1, 1, 3], [6, 5, 7]]
    """
    offsets = np.concatenate([[0], np.cumsum(np.bincount(anchors, minlength=count))]).astype(np.int64)
    grouped = []
    for column in columns:
        ordered = np.empty_like(column)
        _place(anchors, offsets[:-1].copy(), column, ordered)
        grouped.append(ordered)
    return offsets, *grouped


@njit(nogil=True, cache=True)
@no_type_check
def _place(anchors: Any, places: Any, column: Any, ordered: Any) -> None:
    for pair in range(len(anchors)):
        ordered[places[anchors[pair]]] = column[pair]
        places[anchors[pair]] += 1
