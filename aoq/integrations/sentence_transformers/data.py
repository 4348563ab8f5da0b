"""A data set whose rows draw from a table, and the batch sampler that orders them for the trainer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from sentence_transformers.base.sampler import DefaultBatchSampler

from aoq.integrations.items import Items, PairRows
from aoq.integrations.processes import require_same_draws
from aoq.pipeline.tables.table import NegativeTable, ScreenedTable, parts_of
from aoq.pipeline.training.batch_sampler import BatchSampler

COLUMNS = ("image", "caption", "offline_image", "offline_caption", "companion_image", "companion_caption")
"""Columns of a row, in this order; a loss may use only the first ones."""
DRAWN: dict[str | None, int] = {"quintuplet": 3, "offline": 2, None: 1}
"""Number of pairs of an image and a caption in a row."""


class TableData:
    """True pairs of a table with offline negatives, for `SentenceTransformerTrainer`.

    `images` and `captions` are the items of the table's rows: paths, pictures or texts, as the model takes them, in
    sequences that may read lazily, like a column of a data set. They are in the table's order, or in any order with
    `image_ids` and `caption_ids`, which are looked up among the ids that the table keeps.

    `dataset` has one row per true pair, with the first COLUMNS: two for `negatives=None`, four for "offline" (an image
    for the caption and a caption for the image), six for "quintuplet" (with their companions). `label` holds the
    numbers of the row's images, by which a loss recognises captions of the same image. Draws depend only on the seed,
    the epoch and the pair, not on the batch or the number of processes or workers.

    `batches` is the trainer's `batch_sampler`: each pair once per epoch, at random, in mined batches
    (`batches="mined"`, `aoq.pipeline.batches`), or in triples of companions (`batches="triples"`, for losses with
    `companions="anchors"`, needs `negatives=None`). Further options are those of `aoq.BatchSampler`.
    """

    def __init__(
        self,
        table: NegativeTable | ScreenedTable,
        images: Sequence[Any],
        captions: Sequence[Any],
        *,
        negatives: str | None = "quintuplet",
        batches: str | None = None,
        seed: int = 0,
        image_ids: Sequence[str] | None = None,
        caption_ids: Sequence[str] | None = None,
        **drawing: Any,
    ) -> None:
        if negatives not in DRAWN:
            raise ValueError(f'negatives is {negatives!r}; it is "quintuplet", "offline" or None.')
        if batches not in ("mined", "triples", None):
            raise ValueError(f'batches is {batches!r}; it is "mined", "triples" or None.')
        if batches == "triples" and negatives is not None:
            raise ValueError('batches="triples" contain their negatives; set negatives=None.')
        bare = parts_of(table).table
        self._images = Items(bare, "images", images, image_ids)
        self._captions = Items(bare, "captions", captions, caption_ids)
        self._table, self._seed, self._kind, self._drawing = table, seed, batches, drawing
        self._groups = DRAWN[negatives]
        companions = None if negatives == "quintuplet" else "omit"
        self._drawer = BatchSampler(table, batch_size=2, seed=seed, companions=companions, **drawing)
        self.pair_rows = PairRows(self._drawer.pairs, len(bare.t2i))
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()  # workers of a DataLoader see it change
        self.dataset = Dataset.from_dict({"pair": np.arange(len(self._drawer.pairs))}).with_transform(self._rows)

    def set_epoch(self, epoch: int) -> None:
        """Draw for this epoch from now on; the batch sampler calls this."""
        self._epoch.fill_(epoch)

    def batches(
        self,
        dataset: Dataset,
        batch_size: int,
        drop_last: bool,
        valid_label_columns: list[str] | None = None,
        generator: torch.Generator | None = None,
        seed: int = 0,
    ) -> DefaultBatchSampler:
        """Make the trainer's batch sampler; it ignores the trainer's seed."""
        if len(dataset) != len(self._drawer.pairs):
            raise ValueError(
                f"the trainer's data set has {len(dataset)} rows and the table {len(self._drawer.pairs)} pairs; train "
                "on `dataset` as it is."
            )
        require_same_draws(self._table, self._kind, self._seed, self._groups, sorted(self._drawing), batch_size)
        triples = self._kind == "triples"
        sampler = BatchSampler(
            self._table,
            batch_size=batch_size,
            seed=self._seed,
            companions="anchors" if triples else "omit",
            batches="mined" if self._kind == "mined" else None,
            drop_last=drop_last,
            **self._drawing,
        )
        return TableBatchSampler(self, sampler, triples, batch_size, drop_last)

    def _rows(self, columns: Mapping[str, Sequence[int]]) -> dict[str, list[Any]]:
        pairs, epoch = np.asarray(columns["pair"]), int(self._epoch)
        groups = self._drawer.draw_each(pairs, epoch)[: self._groups]
        rows: dict[str, list[Any]] = {}
        for group, (image, caption) in zip(groups, zip(COLUMNS[::2], COLUMNS[1::2], strict=True), strict=False):
            rows[image] = self._images[group[:, 0]]
            rows[caption] = self._captions[group[:, 1]]
        rows["label"] = np.stack([group[:, 0] for group in groups], axis=1).tolist()
        return rows


class TableBatchSampler(DefaultBatchSampler):
    """Batches of rows of a `TableData`, a function of its seed and the epoch."""

    def __init__(self, data: TableData, batches: BatchSampler, triples: bool, batch_size: int, drop_last: bool) -> None:
        super().__init__(range(len(batches.pairs)), batch_size, drop_last)
        self._data, self._batches, self._triples = data, batches, triples

    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(epoch)
        self._data.set_epoch(epoch)

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[list[int]]:
        for step in range(len(self._batches)):
            batch = self._batches.batch(self.epoch, step)
            if not self._triples:
                batch = batch[: len(batch) // 2]  # the anchors
            yield self._data.pair_rows(batch).tolist()
