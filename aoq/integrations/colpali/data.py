"""Queries with their documents and a table's negatives, other ones in each epoch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from colpali_engine.data.dataset import ColPaliEngineDataset, Corpus
from torch.utils.data import Subset

from aoq.integrations.sides import Side
from aoq.pipeline.tables.pairs import SIDES, Pairs
from aoq.pipeline.tables.screens.screened import ScreenedTable, parts_of
from aoq.pipeline.tables.table import NegativeTable
from aoq.pipeline.training.rotation import Rotation


class TableDataset(ColPaliEngineDataset):
    """The true pairs of a table, each a query with its document and `num_negatives` of the query's list.

    Queries are texts; they stand for the table's captions (`direction="t2i"`), or of two other sides for the first one
    ("i2t"), in its order, or with `query_ids` in any order, found by the ids that the table keeps. Documents come from
    the `corpus`: by its `docid_to_idx_mapping` where it has one, under the ids that the table keeps, else by row.

    Where ColPaliEngineDataset draws negatives at random, here each epoch has the next ones of the list
    (`aoq.Rotation`), screened where the table is; `set_epoch` says which epoch it is, and `TableSampler` calls it. A
    row also says whose it is: `anchor_id`, `positive_id` and `negative_ids`, rows of the table; collators leave them
    out.
    """

    def __init__(
        self,
        table: NegativeTable | ScreenedTable,
        queries: Sequence[str],
        corpus: Corpus,
        *,
        direction: str = "t2i",
        num_negatives: int = 3,
        h: int | None = None,
        seed: int = 0,
        query_ids: Sequence[str] | None = None,
    ) -> None:
        self.table, self.seed = table, seed
        bare = parts_of(table).table
        # Without negatives a rotation says whose pairs these are, and nothing of it is read.
        rotation = Rotation(table, direction, k=max(1, num_negatives), h=h, seed=seed)
        anchors, documents = SIDES[rotation.direction]
        counts = {"images": len(bare.i2t), "captions": len(bare.t2i)}
        self._queries = Side(bare, anchors, counts[anchors], queries, query_ids)
        self._docids = _docids(bare, documents, counts[documents], corpus)
        super().__init__(
            rotation, corpus, "anchor_id", "positive_id", "negative_ids" if num_negatives else None, num_negatives
        )

    @property
    def true_pairs(self) -> Pairs:
        """Rows (image, caption) of the table, one a row of the data."""
        pairs: Pairs = self.data.pairs
        return pairs if self.data.direction == "i2t" else pairs[:, ::-1]

    def set_epoch(self, epoch: int) -> None:
        """Take the negatives of this epoch from now on."""
        self.data.set_epoch(epoch)

    def __getitem__(self, idx: int) -> dict[str, Any]:
        found = self.data[idx]
        negatives = found["negative_ids"].tolist() if self.num_negatives else []
        (query,) = self._queries[np.array([found["anchor_id"]])]
        return {
            self.QUERY_KEY: query,
            self.POS_TARGET_KEY: self._documents([found["positive_id"]]),
            self.NEG_TARGET_KEY: self._documents(negatives) or None,
            "anchor_id": found["anchor_id"],
            "positive_id": found["positive_id"],
            "negative_ids": negatives,
        }

    def take(self, n: int) -> Subset[dict[str, Any]]:
        """The first pairs, as the trainer takes them of each of several data sets."""
        return Subset(self, range(n))

    def _documents(self, rows: list[int]) -> list[Any]:
        return [self.corpus.retrieve(row if self._docids is None else self._docids[row]) for row in rows]


def _docids(table: NegativeTable, side: str, count: int, corpus: Corpus) -> Sequence[str] | None:
    """Find the corpus's names of the table's rows; None if it counts them."""
    known = corpus.docid_to_idx_mapping
    if known is None:
        if len(corpus) != count:
            raise ValueError(f"the corpus has {len(corpus)} documents, and the table {count} {side}; give it those.")
        return None
    if side not in table.ids:
        raise ValueError(
            f"the corpus finds documents by id, and the table keeps no ids of its {side}; give a corpus in the table's "
            "order, or mine with ids."
        )
    docids: Sequence[str] = table.ids[side]
    if missing := [docid for docid in docids if docid not in known]:
        raise ValueError(
            f"{len(missing)} of the table's {side} are not in the corpus, the first is {missing[0]!r}; these are other "
            "data."
        )
    return docids
