"""colpali-engine's trainer, in the order of a table's batches."""

from __future__ import annotations

from functools import partial
from typing import Any

from colpali_engine.trainer.contrastive_trainer import ContrastiveTrainer

from aoq.integrations.colpali.data import TableDataset
from aoq.integrations.colpali.sampler import TableSampler
from aoq.pipeline.batches.order import COMMUNITY


class TableTrainer(ContrastiveTrainer):
    """ContrastiveTrainer on a `TableDataset`; `batches` and `community` are `TableSampler`'s.

    With several processes each has a batch of its own, and the trainer gathers their documents.
    """

    def __init__(self, *args: Any, batches: str = "random", community: int = COMMUNITY, **named: Any) -> None:
        if not isinstance(data := named.get("train_dataset"), TableDataset):
            raise ValueError(f"train_dataset is a {type(data).__name__}; TableTrainer trains on one TableDataset.")
        self._sampler = partial(TableSampler, data, batches=batches, community=community)
        super().__init__(*args, **{"eval_dataset": None, **named})

    def _get_train_sampler(self, dataset: Any = None) -> TableSampler:
        return self._sampler(self.args.train_batch_size, processes=self.args.world_size)
