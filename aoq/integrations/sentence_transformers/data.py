"""A data set drawn from a table, its batches, and an evaluator of recalls in both directions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from sentence_transformers.base.evaluation import BaseEvaluator
from sentence_transformers.base.sampler import DefaultBatchSampler

from aoq.integrations.shared import Items, PairRows, check_drawing, count_groups, require_same_draws
from aoq.pipeline.evaluation.evaluate import recalls
from aoq.pipeline.tables.table import NegativeTable, ScreenedTable, table_parts
from aoq.pipeline.training.batch_sampler import BatchSampler

ROW_COLUMNS = ("image", "caption", "offline_image", "offline_caption", "companion_image", "companion_caption")
"""Columns of a row, in this order; a loss may use only the first ones."""


def row_columns(negatives: str | int | None) -> tuple[str, ...]:
    """Return the columns of a row.

    >>> row_columns(1)
    ('image', 'caption', 'offline_image_1', 'offline_caption_1')
    """
    if not isinstance(negatives, int):
        return ROW_COLUMNS[: 2 * count_groups(negatives)]
    drawn = (f"{name}_{place}" for place in range(1, count_groups(negatives)) for name in ROW_COLUMNS[2:4])
    return (*ROW_COLUMNS[:2], *drawn)


class TableData:
    """True pairs of a table with offline negatives, for `SentenceTransformerTrainer`.

    `images` and `captions` are the items of the table's rows: paths, pictures or texts, as the model takes them, in
    sequences that may read lazily, like a column of a data set. They are in the table's order, or in any order with
    `image_ids` and `caption_ids`, which are looked up among the ids that the table keeps.

    `dataset` has one row per true pair, with the first ROW_COLUMNS: two for `negatives=None`, four for "offline" (an
    image for the caption and a caption for the image), six for "quintuplet" (with their companions). `label` holds the
    numbers of the row's images, by which a loss recognises captions of the same image. Draws depend only on the seed,
    the epoch and the pair, not on the batch or the number of processes or workers. `caption_rows=True` appends the
    number of the pair's caption to `label`, for `DistilledLoss`. `negatives=K` draws K images and K captions, in
    columns "offline_image_1" and so on, which a loss with the same `negatives` compares with all pairs of the batch;
    `label` then has the numbers of the captions too.

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
        negatives: str | int | None = "quintuplet",
        batches: str | None = None,
        seed: int = 0,
        image_ids: Sequence[str] | None = None,
        caption_ids: Sequence[str] | None = None,
        caption_rows: bool = False,
        **drawing: Any,
    ) -> None:
        self._columns = row_columns(negatives)
        if batches not in ("mined", "triples", None):
            raise ValueError(f'batches is {batches!r}; it is "mined", "triples" or None.')
        if batches == "triples" and negatives is not None:
            raise ValueError('batches="triples" contain their negatives; set negatives=None.')
        bare, _, suspected = table_parts(table)
        if suspected == "positive" and not isinstance(negatives, int):
            raise ValueError('suspected = "positive" needs a number of `negatives`; give one, or screen with "drop".')
        check_drawing(drawing)
        by_image = isinstance(negatives, str) or batches == "triples"  # all that its loss knows of the pairs
        if by_image and (bare.is_one_set or bare.own("t2i").most > 1):
            pairs = "the table has one set" if bare.is_one_set else "a caption has several images"
            raise ValueError(f"{pairs}; give a number of `negatives`: those losses look up the pairs.")
        self._images = Items(bare, "images", images, image_ids)
        self._captions = Items(bare, "captions", captions, caption_ids)
        self._table, self._seed, self._kind, self._drawing = table, seed, batches, drawing
        several = negatives if isinstance(negatives, int) else None
        self._captions_labelled = len(self._columns) // 2 if several else int(caption_rows)
        companions = None if negatives == "quintuplet" else "omit"
        self._drawer = BatchSampler(table, batch_size=2, seed=seed, companions=companions, negatives=several, **drawing)
        self.pair_rows = PairRows(self._drawer.pairs, len(bare.t2i))
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()  # a DataLoader's workers see it change
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
        options = self._kind, self._seed, self._columns, self._captions_labelled, sorted(self._drawing), batch_size
        require_same_draws(self._table, [], *options)
        triples, table = self._kind == "triples", self._table
        if isinstance(table, ScreenedTable) and table.suspected == "positive":  # rows are drawn from true pairs
            table = replace(table, suspected="drop")
        sampler = BatchSampler(
            table,
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
        groups = self._drawer.draw_each(pairs, epoch)[: len(self._columns) // 2]
        rows: dict[str, list[Any]] = {}
        for group, image, caption in zip(groups, self._columns[::2], self._columns[1::2], strict=True):
            rows[image] = self._images[group[:, 0]]
            rows[caption] = self._captions[group[:, 1]]
        rows["label"] = np.stack([*groups[..., 0], *groups[: self._captions_labelled, :, 1]], axis=1).tolist()
        return rows


class TableBatchSampler(DefaultBatchSampler):
    """Batches of rows of a `TableData`; they depend only on its seed and the epoch."""

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


class RecallEvaluator(BaseEvaluator):
    """Recall at 1, 5 and 10 between images and captions in percent, ranks, and rsum, the primary metric.

    `image_of` holds the image of each caption.
    """

    def __init__(
        self,
        images: Sequence[Any],
        captions: Sequence[Any],
        image_of: Sequence[int] | np.ndarray,
        *,
        name: str = "",
        batch_size: int = 32,
    ) -> None:
        super().__init__()
        self._images, self._captions, self._image_of = images, captions, np.asarray(image_of)
        if len(self._image_of) != len(captions):
            raise ValueError(
                f"image_of has {len(self._image_of)} rows for {len(captions)} captions; give the image of each caption."
            )
        self._name, self._batch_size = name, batch_size
        self.primary_metric = "rsum"

    def __call__(
        self, model: Any, output_path: str | None = None, epoch: int = -1, steps: int = -1
    ) -> dict[str, float]:
        options = {"batch_size": self._batch_size, "show_progress_bar": False, "normalize_embeddings": True}
        images, captions = (model.encode(list(side), **options) for side in (self._images, self._captions))
        similarity = np.asarray(images, np.float32) @ np.asarray(captions, np.float32).T
        metrics: dict[str, float] = self.prefix_name_to_metrics(recalls(similarity, self._image_of), self._name)
        self.store_metrics_in_model_card_data(model, metrics, epoch, steps)
        return metrics
