"""Offline hard negatives for colpali-engine's trainer: a data set that rotates through a table, and its batches.

data = TableDataset(table, captions, Corpus(pages), num_negatives=3)      # queries are captions, documents images
trainer = TableTrainer(
    model=model,
    args=TrainingArguments(...),
    train_dataset=data,
    data_collator=VisualRetrieverCollator(processor),
    loss_func=ColbertPairwiseNegativeCELoss(),
    is_vision_model=True,
)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from torch.utils.data import Sampler

from aoq.integrations.shared import PairRows, find_places, require_same_draws
from aoq.pipeline.batches.lists import meeting_lists
from aoq.pipeline.batches.order import COMMUNITY, keep_apart, mined_order
from aoq.pipeline.data.batches import epoch_order, step_rng
from aoq.pipeline.extras import import_extra
from aoq.pipeline.tables.pairs import SIDES, Pairs
from aoq.pipeline.tables.table import NegativeTable, ScreenedTable, table_parts
from aoq.pipeline.training.batch_sampler import BatchSampler
from aoq.pipeline.training.rotation import Rotation

import_extra("colpali_engine", "colpali-engine", __name__)

from colpali_engine.data.dataset import ColPaliEngineDataset, Corpus
from colpali_engine.trainer.contrastive_trainer import ContrastiveTrainer


class TableDataset(ColPaliEngineDataset):
    """The true pairs of a table: each row has a query, its document and `num_negatives` of the query's list.

    Queries are the texts of the table's captions (`direction="t2i"`), or of its first side ("i2t"), in its order, or in
    any order with `query_ids`, which are looked up among the ids that the table keeps. Documents come from the
    `corpus`: by the table's ids if it has a `docid_to_idx_mapping`, otherwise by row.

    ColPaliEngineDataset draws negatives at random; here each epoch takes the next ones of the list (`aoq.Rotation`,
    which is `data`), screened if the table is. `TableSampler` calls `set_epoch`.
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
        if table_parts(table).suspected == "positive":
            raise ValueError('colpali-engine takes no matches as further positives; screen with suspected = "drop".')
        self.table, self.seed = table, seed
        bare, (anchors, documents) = table_parts(table).table, SIDES["i2t" if direction == "i2t" else "t2i"]
        texts = [queries[place] for place in find_places(bare, anchors, queries, query_ids)]
        known = corpus.docid_to_idx_mapping
        find_places(bare, documents, corpus if known is None else known, known and [*known])  # refuses other data
        docids = range(len(corpus)) if known is None else bare.ids[documents]
        # Without negatives, the rotation only provides the pairs.
        k, values = max(1, num_negatives), {"anchors": texts, "candidates": docids}
        rotation = Rotation(table, direction, k=k, h=h, seed=seed, **values)
        super().__init__(rotation, corpus, "anchor", "positive", "negatives" if num_negatives else None, num_negatives)

    @property
    def true_pairs(self) -> Pairs:
        """Rows (image, caption) of the table, one per row of the data."""
        pairs: Pairs = self.data.pairs
        return pairs if self.data.direction == "i2t" else pairs[:, ::-1]

    def set_epoch(self, epoch: int) -> None:
        """Take the negatives of this epoch from now on."""
        self.data.set_epoch(epoch)


class TableSampler(Sampler[int]):
    """Rows of a `TableDataset`, `batch_size` per batch; they depend only on the data's seed and the epoch.

    In colpali-engine's losses, every document of a batch, in all processes, is a negative of all queries but its own.
    So pairs that match, such as two captions of an image, or that a screen suspects, are swapped with other batches.

        "random"    each pair once per epoch, at random
        "mined"     each pair once, in batches of mutual hard negatives (`aoq.pipeline.batches`)
        "triples"   a third of the pairs, each with its offline negatives and their companions as further pairs;
                    here matching pairs are not swapped

    `set_epoch` also sets the epoch of the data.
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
        if batches not in ("random", "mined", "triples"):
            raise ValueError(f"batches is {batches!r}; it is 'random', 'mined' or 'triples'.")
        if batches == "triples" and batch_size % 3:
            raise ValueError(f"a batch of {batch_size} does not hold whole triples; give a multiple of 3.")
        require_same_draws(data.table, [], data.seed, data.num_negatives, batch_size, batches, community)
        self._data, self._epoch, self._batch_size = data, 0, batch_size * processes
        bare, view, _ = table_parts(data.table)
        self._lists = meeting_lists(bare, data.true_pairs, view=view)
        self._order: Callable[[int], np.ndarray] = lambda epoch: epoch_order(len(data), seed=data.seed, epoch=epoch)
        self._length, self._separates_matches = len(data), batches != "triples"
        if batches == "mined":
            self._order = partial(mined_order, self._lists, batch_size, seed=data.seed, community=community)
        elif batches == "triples":
            sampler = BatchSampler(
                data.table, batch_size=batch_size, seed=data.seed, companions="anchors", drop_last=True
            )
            rows, steps = PairRows(self._lists.pairs, len(bare.t2i)), range(len(sampler))
            self._order = lambda epoch: rows(np.concatenate([sampler.batch(epoch, step) for step in steps]))
            self._length = len(sampler) * len(sampler.batch(0, 0))

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch
        self._data.set_epoch(epoch)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[int]:
        order = self._order(self._epoch)
        if self._separates_matches:
            # The step after those of batches.
            rng = step_rng(seed=self._data.seed, epoch=self._epoch, step=self._length)
            order = keep_apart(self._lists, order.astype(np.int64), min(self._batch_size, len(order)), rng)
        return iter(order.tolist())


class TableTrainer(ContrastiveTrainer):
    """ContrastiveTrainer on a `TableDataset`; `batches` and `community` are `TableSampler`'s.

    With several processes, each has its own batch, and the trainer gathers their documents.
    """

    def __init__(self, *args: Any, batches: str = "random", community: int = COMMUNITY, **named: Any) -> None:
        if not isinstance(data := named.get("train_dataset"), TableDataset):
            raise ValueError(f"train_dataset is a {type(data).__name__}; TableTrainer trains on one TableDataset.")
        self._sampler = partial(TableSampler, data, batches=batches, community=community)
        super().__init__(*args, **{"eval_dataset": None, **named})

    def _get_train_sampler(self, dataset: Any = None) -> TableSampler:
        return self._sampler(self.args.train_batch_size, processes=self.args.world_size)
