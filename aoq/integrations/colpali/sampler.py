"""Order of an epoch's pairs; every batch keeps true matches apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from jaxtyping import Int
from torch.utils.data import Sampler

from aoq.integrations.alike import require_alike
from aoq.integrations.colpali.data import TableDataset
from aoq.pipeline.batches.lists import MeetingLists, meeting_lists
from aoq.pipeline.batches.order import COMMUNITY, MinedBatches, keep_apart
from aoq.pipeline.data.batches import epoch_order
from aoq.pipeline.tables.pairs import pair_keys
from aoq.pipeline.tables.screens.screened import parts_of
from aoq.pipeline.training.batch_sampler import BatchSampler

Rows = Int[np.ndarray, " rows"]
KINDS = ("random", "mined", "triples")


class TableSampler(Sampler[int]):
    """Rows of a `TableDataset`, of which each `batch_size` are a batch; a function of the data's seed and the epoch.

    colpali-engine's losses take every document of a batch but the query's own for a negative, those of all processes.
    So pairs that match, as two captions of an image do, or that a screen suspects to, are exchanged with other batches.

        "random"    each pair once an epoch, at random
        "mined"     each pair once, in batches of each other's hard negatives (`aoq.pipeline.batches`)
        "triples"   a third of the pairs, with a negative of each side and their companions as pairs of their own;
                    what matches here is left where it is

    `set_epoch` draws anew, and tells the data.
    """

    def __init__(
        self,
        data: TableDataset,
        batch_size: int,
        *,
        batches: str = "random",
        processes: int = 1,
        community: int = COMMUNITY,
    ) -> None:
        if batches not in KINDS:
            raise ValueError(f"batches is {batches!r}; it is {', '.join(map(repr, KINDS[:-1]))} or {KINDS[-1]!r}.")
        require_alike(data.table, data.seed, data.num_negatives, batch_size, batches, community)
        self._data, self._epoch, self._together = data, 0, batch_size * processes
        table, seed = data.table, data.seed
        bare, view, _ = parts_of(table)
        self._lists = meeting_lists(bare, data.true_pairs, view=view)
        self._order: Callable[[int], Rows] = lambda epoch: epoch_order(len(data), seed=seed, epoch=epoch)
        if batches == "mined":
            self._order = MinedBatches(self._lists, batch_size, seed, community).order
        self._length, self._apart = len(data), batches != "triples"
        if batches == "triples":
            self._order, self._length = _triples(data, self._lists, batch_size)

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch
        self._data.set_epoch(epoch)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[int]:
        order = self._order(self._epoch)
        if self._apart:
            rng = np.random.default_rng([self._data.seed, self._epoch])
            order = keep_apart(self._lists, order.astype(np.int64), min(self._together, len(order)), rng)
        return iter(order.tolist())


def _triples(data: TableDataset, lists: MeetingLists, batch_size: int) -> tuple[Callable[[int], Rows], int]:
    """The rows of an epoch's triples, and how many there are."""
    sampler = BatchSampler(data.table, batch_size=batch_size, seed=data.seed, companions="anchors", drop_last=True)
    keys = pair_keys(lists.pairs[:, 0], lists.pairs[:, 1], lists.captions)
    places = np.argsort(keys)

    def order(epoch: int) -> Rows:
        drawn = np.concatenate([sampler.batch(epoch, step) for step in range(len(sampler))])
        wanted = pair_keys(drawn[:, 0], drawn[:, 1], lists.captions)
        return places[np.searchsorted(keys, wanted, sorter=places)]

    return order, len(sampler) * len(sampler.batch(0, 0))
