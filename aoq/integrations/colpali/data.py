"""Queries with their documents and a table's negatives, different ones in each epoch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from colpali_engine.data.dataset import ColPaliEngineDataset, Corpus
from torch.utils.data import Subset

from aoq.integrations.items import Items
from aoq.pipeline.tables.pairs import SIDES, Pairs
from aoq.pipeline.tables.table import NegativeTable, ScreenedTable, parts_of
from aoq.pipeline.training.rotation import Rotation


class TableDataset(ColPaliEngineDataset):
    """The true pairs of a table, each a query with its document and `num_negatives` of the query's list.

    Queries are the texts of the table's captions (`direction="t2i"`), or of its first side ("i2t"), in its order, or in
    any order with `query_ids`, which are looked up among the ids that the table keeps. Documents come from the
    `corpus`: by the table's ids if it has a `docid_to_idx_mapping`, else by row.

    ColPaliEngineDataset draws negatives at random; here each epoch takes the next ones of the list (`aoq.Rotation`),
    screened if the table is. `TableSampler` calls `set_epoch`. Each row also has `anchor_id`, `positive_id` and
    `negative_ids`, rows of the table, which collators ignore.
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
        # Without negatives, the rotation only provides the pairs.
        rotation = Rotation(table, direction, k=max(1, num_negatives), h=h, seed=seed)
        anchors, documents = SIDES[rotation.direction]
        self._queries = Items(bare, anchors, queries, query_ids)
        self._docids = _docids(bare, documents, corpus)
        super().__init__(
            rotation, corpus, "anchor_id", "positive_id", "negative_ids" if num_negatives else None, num_negatives
        )

    @property
    def true_pairs(self) -> Pairs:
        """Rows (image, caption) of the table, one per row of the data."""
        pairs: Pairs = self.data.pairs
        return pairs if self.data.direction == "i2t" else pairs[:, ::-1]

    def set_epoch(self, epoch: int) -> None:
        """Take the negatives of this epoch from now on."""
        self.data.set_epoch(epoch)

    def __getitem__(self, idx: int) -> dict[str, Any]:
        row = self.data[idx]
        negatives = row["negative_ids"].tolist() if self.num_negatives else []
        (query,) = self._queries[np.array([row["anchor_id"]])]
        return {
            self.QUERY_KEY: query,
            self.POS_TARGET_KEY: self._documents([row["positive_id"]]),
            self.NEG_TARGET_KEY: self._documents(negatives) or None,
            "anchor_id": row["anchor_id"],
            "positive_id": row["positive_id"],
            "negative_ids": negatives,
        }

    def take(self, n: int) -> Subset[dict[str, Any]]:
        """Return the first pairs, as the trainer does with each of several data sets."""
        return Subset(self, range(n))

    def _documents(self, rows: list[int]) -> list[Any]:
        return [self.corpus.retrieve(row if self._docids is None else self._docids[row]) for row in rows]


def _docids(table: NegativeTable, side: str, corpus: Corpus) -> Sequence[str] | None:
    """Return the corpus's ids of the table's rows; None if it has only row numbers."""
    known, count = corpus.docid_to_idx_mapping, len(table.i2t if side == "images" else table.t2i)
    if known is None:
        if len(corpus) != count:
            raise ValueError(
                f"the corpus has {len(corpus)} documents, and the table {count} {side}; give the same ones."
            )
        return None
    if side not in table.ids:
        raise ValueError(
            f"the corpus finds documents by id, but the table keeps no ids of its {side}; give a corpus in the table's "
            "order, or mine with ids."
        )
    docids: Sequence[str] = table.ids[side]
    if missing := [docid for docid in docids if docid not in known]:
        raise ValueError(
            f"{len(missing)} of the table's {side} are not in the corpus, the first is {missing[0]!r}; these are "
            "different data."
        )
    return docids
