"""Other negatives of each anchor in each epoch, for any trainer's data loader."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Int32, Int64
from torch.utils.data import Dataset

from aoq.pipeline.search.problem import DIRECTIONS, Direction
from aoq.pipeline.tables.pairs import SIDES, require_one_each
from aoq.pipeline.tables.table import NegativeTable, ScreenedTable, table_parts
from aoq.pipeline.training.drawable import drawable_lists

ANCHOR = "anchor_id"
"""The column of a data set's rows that names the anchor whose negatives they get, as in a table's files."""


class Rotation(Dataset[dict[str, Any]]):
    """The true pairs of a table, each with `k` negatives of its anchor: others in each epoch until all have been used.

    Each anchor's list is put in an order of its own, a function of (seed, anchor), and closed to a ring. Epoch e takes
    the places e k to e k + k - 1 of it. So no negative returns before the whole list has been used, a set holds
    a negative twice only if the list is shorter than k, and all processes and workers see the same. If a screen
    downweights suspected negatives, a negative has a place in a fraction of the turns around the ring, its weight
    relative to the list's highest; the list is then as long as the sum of these.

    Anchors are images with the `direction` "i2t", captions with "t2i". As a torch data set it has a row per true pair:

        anchor_id, positive_id   rows of the table
        negative_ids             (k,) int64
        anchor                   the anchor's value, if `anchors` are given
        positive, negatives      their values, if `candidates` are given; negatives are a list

    `anchors` and `candidates` are sequences with a value per row of the table: paths, pictures, texts, ids. Called with
    rows of a `datasets.Dataset` that have a column `anchor_id`, it replaces that by the columns `negative_1` to
    `negative_k`: `train.with_transform(rotation)`. `set_epoch` sets the epoch, also for workers that are running.

    Flagged negatives of a screened table are left out, unless all of a list are flagged. `h` keeps the first ranks.
    """

    def __init__(
        self,
        table: NegativeTable | ScreenedTable,
        direction: str,
        *,
        k: int,
        h: int | None = None,
        seed: int = 0,
        anchors: Sequence[Any] | None = None,
        candidates: Sequence[Any] | None = None,
    ) -> None:
        if direction not in DIRECTIONS:
            raise ValueError(f'direction is {direction!r}; it must be "i2t" (of images) or "t2i" (of captions).')
        way: Direction = "i2t" if direction == "i2t" else "t2i"
        if k < 1:
            raise ValueError(f"k = {k} leaves no negatives; give at least 1.")
        bare = table_parts(table).table
        self.pairs = bare.true_pairs if way == "i2t" else bare.true_pairs[:, ::-1]
        """The true pairs, rows (anchor, positive)."""
        self._lists = drawable_lists(table, way, h=h, option="h")
        self._lists.require_negatives(way, self.pairs[:, 0], k)
        self.k, self.direction, self._seed = k, way, seed
        counts = {"images": len(bare.i2t), "captions": len(bare.t2i)}
        for side, values in zip(SIDES[way], (anchors, candidates), strict=True):
            require_one_each(values, side, counts[side])
        self._anchors, self._candidates = anchors, candidates
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()  # workers of a DataLoader see it change

    def set_epoch(self, epoch: int) -> None:
        """Take the negatives of this epoch from now on."""
        self._epoch.fill_(epoch)

    def negatives(self, anchors: Sequence[int] | np.ndarray, epoch: int | None = None) -> Int64[np.ndarray, "some k"]:
        """Return the rows of these anchors' negatives in an epoch, by default the one that was set."""
        rows = np.asarray(anchors)
        if len(outside := np.flatnonzero((rows < 0) | (rows >= len(self._lists.ids)))):
            raise ValueError(
                f"{ANCHOR} {rows[outside[0]]} is not one of the table's {SIDES[self.direction][0]}, 0 to "
                f"{len(self._lists.ids) - 1}; these are other data."
            )
        now = int(self._epoch) if epoch is None else epoch
        return np.array([self._turn(row, now) for row in rows.tolist()], np.int64).reshape(-1, self.k)

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, row: int) -> dict[str, Any]:
        anchor, positive = self.pairs[row].tolist()
        ids = self.negatives([anchor])[0]
        item = {ANCHOR: anchor, "positive_id": positive, "negative_ids": ids}
        if self._anchors is not None:
            item["anchor"] = self._anchors[anchor]
        if self._candidates is not None:
            item["positive"] = self._candidates[positive]
            item["negatives"] = [self._candidates[one] for one in ids.tolist()]
        return item

    def __call__(self, rows: Mapping[str, Sequence[Any]]) -> dict[str, Sequence[Any]]:
        """Add negatives to rows of `datasets`."""
        if ANCHOR not in rows:
            raise ValueError(
                f"rows have the columns {', '.join(rows)}, and a rotation finds their negatives by {ANCHOR}, the row "
                "of their anchor; add it."
            )
        places = self.negatives(rows[ANCHOR]).T.tolist()
        if self._candidates is not None:
            places = [[self._candidates[one] for one in place] for place in places]
        others = {name: values for name, values in rows.items() if name != ANCHOR}
        return others | {f"negative_{number}": place for number, place in enumerate(places, start=1)}

    def _turn(self, anchor: int, epoch: int) -> Int32[np.ndarray, " k"]:
        places = np.flatnonzero(self._lists.may_draw(anchor))
        if not len(places):
            raise ValueError(f"{SIDES[self.direction][0][:-1]} {anchor} has no negative; leave its rows out.")
        ring = np.random.default_rng([self._seed, anchor]).permutation(places)
        weights = np.ones(len(ring)) if self._lists.weights is None else self._lists.weights[anchor, ring]
        ends = np.cumsum(weights / weights.max(), dtype=np.float64)  # each negative has an arc as long as its weight
        at = (epoch * self.k + np.arange(self.k) + 0.5) % ends[-1]
        return self._lists.ids[anchor, ring[np.searchsorted(ends, at, side="right")]]
