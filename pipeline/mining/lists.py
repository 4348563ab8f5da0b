"""Lists on their way from a search to a table, and the certificates beside them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.mining.exact import lowest_positives
from pipeline.mining.problem import Side
from pipeline.mining.proposals import Heads
from pipeline.mining.table import CERTIFICATES, ContentHash, NegativeLists, from_arrow, to_arrow

GROUP_ROWS = 4096


def lists_table(side: Side, found: Heads, first_anchor: int) -> pa.Table:
    """Rows of the table, and of each the `bound`: no candidate without an exact score of its own can score more."""
    lists = to_arrow(NegativeLists(found.ids, found.scores, lowest_positives(side)), first_anchor)
    return lists.append_column("bound", pa.array(found.bound))


def certificates(group: pa.Table) -> pa.Table:
    """Each row's last score, and the bound of all that was not scored exactly.

    They stand beside the table, not in it: they tell of the search, and the table is the same whatever the search.
    """
    last = pa.array(from_arrow(group).scores[:, -1])
    return pa.table({"anchor_id": group["anchor_id"], "last_score": last, "bound": group["bound"]}, schema=CERTIFICATES)


def row_groups(parts: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """All rows in groups of one size, whatever the parts': so that the same lists make the same file."""
    waiting = []
    for part in parts:
        waiting.append(part)
        while sum(map(len, waiting)) > GROUP_ROWS:
            whole = pa.concat_tables(waiting)
            yield whole.slice(0, GROUP_ROWS).combine_chunks()
            waiting = [whole.slice(GROUP_ROWS)]
    yield pa.concat_tables(waiting).combine_chunks()


class Summary:
    """A hash of the lists themselves, and the figures people look at first: how hard they are beside the positives.

    Groups of lists that a search certified have a column `bound` (`lists_table`).
    """

    def __init__(self) -> None:
        self._content = ContentHash()
        self._rows = self._positives = 0
        self._sums = np.zeros(4)
        self._certified: int | None = None

    def add(self, group: pa.Table) -> None:
        lists = from_arrow(group)
        scores, positive = lists.scores, lists.positive_scores
        self._content.add(lists)
        self._rows += len(lists)
        self._positives += int(np.isfinite(positive).sum())
        columns = (scores[:, 0], scores[:, -1], positive, scores[:, 0] > positive)
        self._sums += [np.nansum(column, dtype=np.float64) for column in columns]
        if "bound" in group.column_names:
            self._certified = (self._certified or 0) + int((scores[:, -1] > group["bound"].to_numpy()).sum())

    def figures(self) -> dict[str, Any]:
        first, last, positive, above = self._sums.tolist()
        certified = {} if self._certified is None else {"certified_share": self._certified / self._rows}
        return {
            "anchors": self._rows,
            "sha256": self._content.hexdigest(),
            **certified,
            "first_score_mean": round(first / self._rows, 4),
            "last_score_mean": round(last / self._rows, 4),
            "positive_score_mean": round(positive / self._positives, 4) if self._positives else None,
            "above_positive_share": round(above / self._rows, 4),
        }
