"""Order of an epoch's pairs: the pairs of a batch are each other's hard negatives.

After B3 (Thirukovalluru et al., NeurIPS 2025): a teacher's ranks make a sparse graph, which is split into communities,
and a batch is whole communities. Here both directions of a table are in the graph. An epoch is split into passes in
which each image occurs once, so that its captions never share a batch. The negatives that become edges are drawn anew
in each epoch, so batches differ. Pairs that match, or are suspected to, are moved to other batches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock

import numpy as np
from jaxtyping import Int32, Int64, Integer

from aoq.pipeline.batches.communities import Communities, communities, pass_graph, passes
from aoq.pipeline.batches.lists import MeetingLists

MOST_EDGES = 10
"""Edges per list in a pass."""
COMMUNITY = 32
CELLS = 1 << 20
"""Images x captions looked up at once."""
_TRIES = 50
"""Places tried for a pair that is moved to another batch."""
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

    def order(self, epoch: int) -> Order:
        """Order every pair once, batch after batch; the last may be short."""
        rng, size = np.random.default_rng([self.seed, epoch]), self.batch_size
        wanted = size // max(1, round(size / self.community))
        full, rest = [], []
        for rows in passes(self.lists.pairs[:, 0], rng):
            graph = pass_graph(self.lists, rows, most=MOST_EDGES, rng=rng)
            packed = rows[pack_communities(communities(graph, wanted, rng), wanted, size, rng)]
            stop = len(packed) // size * size
            full.append(packed[:stop])
            rest.append(packed[stop:])
        ends = rng.permutation(np.concatenate(rest))
        stop = len(ends) // size * size
        batches = np.concatenate([*full, ends[:stop]]).reshape(-1, size)
        ordered = np.concatenate([rng.permutation(batches).ravel(), ends[stop:]])
        return keep_apart(self.lists, ordered, size, rng).astype(np.int32)


def pack_communities(
    numbers: Communities, wanted: int, size: int, rng: np.random.Generator
) -> Int64[np.ndarray, " nodes"]:
    """Pack nodes into batches of `size`, each with as many communities of the `wanted` size as fit, at random.

    Smaller communities follow, the largest first; the last of these fill the room that whole communities leave.
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


def keep_apart(
    lists: MeetingLists, order: Integer[np.ndarray, " pairs"], size: int, rng: np.random.Generator
) -> Integer[np.ndarray, " pairs"]:
    """Exchange pairs that match another of their batch with pairs of other batches, so that neither matches any.

    A pair without such an exchange stays, as in a batch as large as the data.
    """
    order = order.copy()
    for place in meetings(lists, order, size).tolist():
        if not _would_match(lists, order, place, order[place], size):
            continue  # the pair that it matched was moved
        for other in rng.integers(len(order), size=_TRIES).tolist():
            exchanged = (place, order[other]), (other, order[place])
            if other // size != place // size and not any(_would_match(lists, order, *one, size) for one in exchanged):
                order[[place, other]] = order[[other, place]]
                break
    return order


def meetings(lists: MeetingLists, order: Integer[np.ndarray, " pairs"], size: int) -> Int64[np.ndarray, " places"]:
    """Find places of pairs whose image or caption matches another pair's in the batch; the later of the two."""
    places, whole = [], len(order) // size * size
    step = size * max(1, CELLS // size**2)
    for start, stop in [*((start, min(start + step, whole)) for start in range(0, whole, step)), (whole, len(order))]:
        pairs = lists.pairs[order[start:stop]].reshape(-1, min(size, max(1, stop - start)), 2)
        batch, row, column = np.nonzero(lists.matching_cells(pairs))
        places.append(start + batch * size + np.maximum(row, column))
    return np.unique(np.concatenate(places))


def _would_match(
    lists: MeetingLists, order: Integer[np.ndarray, " pairs"], place: int, pair: np.int64, size: int
) -> bool:
    """Return whether a pair at this place would match another of the batch."""
    start = place // size * size
    others = np.delete(order[start : start + size], place - start)
    own, (images, captions) = lists.pairs[[pair]], lists.pairs[others].T
    return bool((lists.match(own[:, 0], captions) | lists.match(images, own[:, 1])).any())


class KeptOrder:
    """The order of the last requested epoch; threads share it."""

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
