"""The lists of AOQ's official code (2020): `i2t_{name}.npy` and `t2i_{name}.npy`, int32 (anchors, h), hardest first.

Row n of i2t holds caption rows for image n, row n of t2i image rows for caption n. There are neither scores nor
padding: the code draws one of the first `offcandisize` entries (a fifth of them in t2i) of every row.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from jaxtyping import Integer
from numpy.lib.format import open_memmap

from aoq.pipeline.data.files import open_array
from aoq.pipeline.tables.exchange.outgoing import Outgoing, Written


def write_official(outgoing: Outgoing, folder: Path) -> Written:
    """One direction's file, named after the folder; refuses a list that is too short to fill its row."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{outgoing.direction}_{folder.name}.npy"
    lists = open_memmap(path, mode="w+", dtype=np.int32, shape=(len(outgoing.anchors.ids), outgoing.depth))
    for chunk in outgoing.chunks():
        if (short := chunk.lengths < outgoing.depth).any():
            row = int(short.argmax())
            raise ValueError(
                f"{outgoing.direction}: anchor {chunk.first + row} has {chunk.lengths[row]} negatives, and the "
                "official lists have no padding; give --num-negatives, at most as many as every anchor has."
            )
        lists[chunk.first : chunk.first + len(chunk.ids)] = chunk.ids
    lists.flush()
    return Written(len(lists))


def open_official(path: Path) -> Integer[np.ndarray, "anchors h"]:
    """The lists of one direction, memory-mapped."""
    lists = open_array(path)
    if lists.ndim != 2 or 0 in lists.shape or not np.issubdtype(lists.dtype, np.integer):
        raise ValueError(
            f"{path} holds {lists.dtype} of shape {lists.shape}; official lists are integers of shape (anchors, h)."
        )
    return lists
