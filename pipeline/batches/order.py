"""Order of an epoch's pairs: those of a batch are each other's hard negatives.

After B3 (Thirukovalluru et al., NeurIPS 2025): a teacher's ranks make a sparse graph, which is split into communities,
and a batch is whole communities. Here both directions of a table are in the graph. An epoch is split into passes in
which each image occurs once, so that its captions do not meet. A list's negatives that become edges are drawn anew in
each epoch, so batches differ. Pairs that match, or are suspected to, are moved to other batches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock

import numpy as np
from jaxtyping import Int32, Int64

from aoq.pipeline.batches.apart import keep_apart
from aoq.pipeline.batches.communities import Communities, communities
from aoq.pipeline.batches.graph import pass_graph, passes
from aoq.pipeline.batches.lists import MeetingLists

MOST_EDGES = 10
"""Edges per list in a pass."""
COMMUNITY = 32
Order = Int32[np.ndarray, " pairs"]
"""Rows of pairs, batch after batch."""


@dataclass(frozen=True)
class MinedBatches:
    """Orders of the pairs, a function of (seed, epoch) alone; each `batch_size` of them are a batch.

    A batch is communities of about `community` pairs, each other's hard negatives.
    """

    lists: MeetingLists
    batch_size: int
    seed: int = 0
    community: int = COMMUNITY

    def order(self, epoch: int) -> Int32[np.ndarray, " pairs"]:
        """Order every pair once, batch after batch; the last may be short."""
        rng, size = np.random.default_rng([self.seed, epoch]), self.batch_size
        wanted = size // max(1, round(size / self.community))
        full, rest = [], []
        for rows in passes(self.lists.pairs[:, 0], rng):
            graph = pass_graph(self.lists, rows, most=MOST_EDGES, rng=rng)
            packed = rows[pack(communities(graph, wanted, rng), wanted, size, rng)]
            stop = len(packed) // size * size
            full.append(packed[:stop])
            rest.append(packed[stop:])
        ends = rng.permutation(np.concatenate(rest))
        stop = len(ends) // size * size
        batches = np.concatenate([*full, ends[:stop]]).reshape(-1, size)
        ordered = np.concatenate([rng.permutation(batches).ravel(), ends[stop:]])
        return keep_apart(self.lists, ordered, size, rng).astype(np.int32)


def pack(numbers: Communities, wanted: int, size: int, rng: np.random.Generator) -> Int64[np.ndarray, " nodes"]:
    """Pack nodes into batches of `size`, each with as many communities of the `wanted` size as fit, at random.

    Smaller communities follow, the largest first; the room that whole communities leave in a batch is filled
    with the last of these.
    """
    sizes = np.bincount(numbers)
    rank = np.lexsort((rng.random(len(sizes)), -sizes)).argsort()  # of communities: the largest first, else at random
    order = np.argsort(rank[numbers], kind="stable")
    each, room = divmod(size, wanted)
    batches = min(int((sizes == wanted).sum()) // each, len(numbers) // size)
    whole, loose = order[: batches * each * wanted], order[batches * each * wanted :]
    last = len(loose) - batches * room
    filled = np.concatenate([whole.reshape(batches, each * wanted), loose[last:].reshape(batches, room)], axis=1)
    return np.concatenate([filled.ravel(), loose[:last]])


class KeptOrder:
    """Cache of the last epoch's order, made once whichever threads ask for it."""

    def __init__(self, make: Callable[[int], Order]) -> None:
        self._make, self._lock = make, Lock()
        self._kept: tuple[int, Order] | None = None

    def __reduce__(self) -> tuple[type[KeptOrder], tuple[object]]:
        return KeptOrder, (self._make,)  # a lock can be neither copied nor pickled

    def __call__(self, epoch: int) -> Order:
        with self._lock:
            if self._kept is None or self._kept[0] != epoch:
                self._kept = epoch, self._make(epoch)
            return self._kept[1]
