"""A trainer's own items for the rows of a table, and the rows of its pairs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from aoq.pipeline.tables.pairs import Pairs, pair_keys, rows_by_id
from aoq.pipeline.tables.table import NegativeTable


class Items:
    """The items of one side, `images` or `captions`: in the table's order, or found by the ids that the table keeps."""

    def __init__(self, table: NegativeTable, side: str, items: Sequence[Any], ids: Sequence[str] | None) -> None:
        self._items, self._places = items, None
        count = len(table.i2t if side == "images" else table.t2i)
        if ids is not None:
            if side not in table.ids:
                raise ValueError(
                    f"{side[:-1]}_ids are given, but the table keeps none; leave them out and use its order."
                )
            if len(ids) != len(items):
                raise ValueError(f"{len(ids)} {side[:-1]}_ids name {len(items)} {side}; give one each.")
            rows = rows_by_id(ids, side[:-1])
            if missing := [name for name in table.ids[side] if name not in rows]:
                raise ValueError(
                    f"{len(missing)} of the table's {side} are not among the ids, the first is {missing[0]!r}; "
                    "these are different data."
                )
            self._places = np.array([rows[name] for name in table.ids[side]])
        elif len(items) != count:
            raise ValueError(f"{len(items)} {side} are given for a table of {count}; these are different data.")

    def __getitem__(self, rows: np.ndarray) -> list[Any]:
        places = rows if self._places is None else self._places[rows]
        return [self._items[place] for place in places.tolist()]


class PairRows:
    """Find the rows of pairs in a list of all true pairs."""

    def __init__(self, pairs: Pairs, captions: int) -> None:
        self._captions = captions
        keys = pair_keys(pairs[:, 0], pairs[:, 1], captions)
        self._order = np.argsort(keys)
        self._sorted = keys[self._order]

    def __call__(self, pairs: np.ndarray) -> np.ndarray:
        keys = pair_keys(pairs[:, 0], pairs[:, 1], self._captions)
        return np.asarray(self._order[np.searchsorted(self._sorted, keys)])
