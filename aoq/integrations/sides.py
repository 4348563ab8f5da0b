"""A trainer's own items for the rows of a table's sides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from aoq.pipeline.tables.rows import rows_by_id
from aoq.pipeline.tables.table import NegativeTable


class Side:
    """The values of one side, `images` or `captions`, in the table's order, or found by the ids that it keeps."""

    def __init__(
        self, table: NegativeTable, side: str, count: int, values: Sequence[Any], ids: Sequence[str] | None
    ) -> None:
        self._values, self._places = values, None
        if ids is not None:
            if side not in table.ids:
                raise ValueError(f"{side[:-1]}_ids are given, and the table keeps none; leave them out, in its order.")
            if len(ids) != len(values):
                raise ValueError(f"{len(ids)} {side[:-1]}_ids name {len(values)} {side}; give one each.")
            rows = rows_by_id(ids, side[:-1])
            if missing := [name for name in table.ids[side] if name not in rows]:
                raise ValueError(
                    f"{len(missing)} of the table's {side} are not among the ids given, the first is {missing[0]!r}; "
                    "these are other data."
                )
            self._places = np.array([rows[name] for name in table.ids[side]])
        elif len(values) != count:
            raise ValueError(f"{len(values)} {side} are given for a table of {count}; they are of other data.")

    def __getitem__(self, rows: np.ndarray) -> list[Any]:
        places = rows if self._places is None else self._places[rows]
        return [self._values[place] for place in places.tolist()]
