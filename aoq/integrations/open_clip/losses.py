"""Losses on offline negatives that replace open_clip's; the model's output holds features and rows.

They are the losses of `aoq` on cosines, scaled like open_clip's: without offline negatives, and if no two pairs of a
batch match, `OfflineClipLoss` equals ClipLoss and `OfflineSigLipLoss` equals SigLipLoss. Several processes gather
features, so loss and gradient equal those of one process. Accumulated batches (`--accum-freq`) count as one.
"""

from __future__ import annotations

from abc import abstractmethod
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from aoq.integrations.shared import TaughtLoss, count_groups, gather, group_similarities
from aoq.pipeline.losses.aoq import adap_off_quin, off_quin
from aoq.pipeline.losses.info_nce import adap_info_nce, info_nce, sigmoid_loss
from aoq.pipeline.losses.similarities import LossValue, Similarities
from aoq.pipeline.tables.pairs import pair_keys
from aoq.pipeline.tables.table import NegativeTable, ScreenedTable, table_parts
from aoq.pipeline.training.batch_sampler import BatchSampler

ROWS_LOOKED_UP = 512
"""Rows of the matrix of true pairs looked up at a time, at 24 bytes per pair."""


class _ClipTableLoss(nn.Module):
    """A loss on batches of `TableData`; the table's true pairs are never negatives, on any process.

    Call it like open_clip's: `loss(**model(images, texts), output_dict=True)`, with a model from `carry_rows`.
    """

    _true: Tensor
    parts: ClassVar[tuple[str, ...]] = ("contrastive",)
    """Figures that add up to the loss; a single one is the whole loss."""
    halves: ClassVar[int] = 1
    """2 if the two directions are averaged."""

    def __init__(
        self,
        table: NegativeTable | ScreenedTable,
        *,
        negatives: Literal["offline", "quintuplet"] | int | None = "offline",
    ) -> None:
        super().__init__()
        self.groups, self._table, self._is_checked = count_groups(negatives), table_parts(table).table, False
        self.negatives, self._sampler = negatives, None
        if isinstance(negatives, int):
            self._sampler = BatchSampler(table, batch_size=2, companions="omit", negatives=negatives)
        pairs = self._table.true_pairs
        if (matches := table_parts(table).matches) is not None:
            pairs = np.concatenate([pairs, matches])
        keys = pair_keys(pairs[:, 0], pairs[:, 1], len(self._table.t2i))
        self.register_buffer("_true", torch.from_numpy(keys).unique(), persistent=False)

    @abstractmethod
    def value(self, pairs: Similarities, scale: Float[Tensor, ""], bias: Float[Tensor, ""]) -> LossValue:
        """Compute the loss, summed over the pairs."""

    def forward(
        self,
        image_features: Float[Tensor, "pairs D"],
        text_features: Float[Tensor, "pairs D"],
        logit_scale: Float[Tensor, "*one"],
        logit_bias: Float[Tensor, "*one"] | None = None,
        rows: Int[Tensor, "pairs 3"] | None = None,
        output_dict: bool = False,
    ) -> Tensor | dict[str, Tensor]:
        """Return the loss of the batch in all processes, or a dict of the terms that add up to it."""
        if rows is None or not self._is_checked:
            rows, self._is_checked = _checked_rows(rows, self, self.groups, self._table), True
        images, captions, rows = (gather(part) for part in (image_features, text_features, rows))
        order = rows[:, 2].argsort(stable=True)  # processes and accumulated batches follow one another
        images, captions, rows = images[order].float(), captions[order].float(), rows[order]
        scale = logit_scale.float().sum()
        bias = torch.zeros(()).to(images) if logit_bias is None else logit_bias.float().sum()
        with torch.autocast(images.device.type, enabled=False):
            is_positive = self._are_true(rows[: len(rows) // self.groups])
            excluded = None if self._sampler is None else self._sampler.excluded(rows[:, :2])
            loss = self.value(group_similarities(images, captions, rows[:, 0], is_positive, excluded), scale, bias)
            size = self.halves * len(is_positive)
            total = loss.total / size + 0 * (scale + bias)  # DistributedDataParallel waits for all gradients
        if not output_dict:
            return total
        parts = {part: loss.figures[part] / size for part in self.parts[1:]}
        return {f"{self.parts[0]}_loss": total - sum(parts.values()), **{f"{k}_loss": v for k, v in parts.items()}}

    def _are_true(self, rows: Int[Tensor, "batch 3"]) -> Bool[Tensor, "batch batch"]:
        last, parts, rows = len(self._true) - 1, [], rows.long()
        for images in rows[:, 0].split(ROWS_LOOKED_UP):
            keys = images[:, None] * len(self._table.t2i) + rows[None, :, 1]
            parts.append(self._true[torch.searchsorted(self._true, keys).clamp(max=last)] == keys)
        return torch.cat(parts)


def _checked_rows(
    rows: Int[Tensor, "pairs 3"] | None, loss: nn.Module, groups: int, table: NegativeTable
) -> Int[Tensor, "pairs 3"]:
    """Check the rows of the first batch of a loss; only of the first, since this waits for the device."""
    if rows is None:
        raise ValueError(
            "the batch carries no rows of the table; read it with aoq's TableData, and pass the model to carry_rows "
            "before wrapping it."
        )
    counts = rows[:, 2].bincount().tolist()
    if len(counts) != groups or len({*counts}) > 1:
        raise ValueError(
            f"{type(loss).__name__} takes {groups} equal groups of pairs, but the batch has {counts}; make it with "
            f"TableData.loader(negatives={getattr(loss, 'negatives', None)!r})."
        )
    sides = ("image", len(table.i2t)), ("caption", len(table.t2i))
    for (side, count), column in zip(sides, rows.T, strict=False):
        if (last := int(column.max())) >= count or int(column.min()) < 0:
            raise ValueError(
                f"the batch names {side} {last}, but the table of the loss has {side}s 0 to {count - 1}; give the data "
                "and the loss the same table."
            )
    return rows


class OfflineClipLoss(_ClipTableLoss):
    """InfoNCE in both directions, with offline negatives as further candidates.

    `aoq.info_nce` at the model's temperature, or `aoq.adap_info_nce` if `adaptive`, halved and averaged over the pairs
    as in CLIP. `negatives=None` leaves only in-batch negatives. By default an anchor is compared with its own offline
    negative; with a number, every drawn image and caption is a candidate for all pairs of the batch, except for true
    and suspected pairs (give the screened table).
    """

    halves = 2

    def __init__(
        self,
        table: NegativeTable | ScreenedTable,
        *,
        negatives: Literal["offline"] | int | None = "offline",
        adaptive: bool = False,
        alpha: float = 0.3,
        beta: float = 1.5,
        hardness_weight: float = 0.0,
    ) -> None:
        super().__init__(table, negatives=negatives)
        function = partial(adap_info_nce, alpha=alpha, beta=beta) if adaptive else info_nce
        self._function = partial(function, hardness_weight=hardness_weight)

    def value(self, pairs: Similarities, scale: Float[Tensor, ""], bias: Float[Tensor, ""]) -> LossValue:
        return self._function(pairs, temperature=1 / scale)


class OfflineSigLipLoss(_ClipTableLoss):
    """SigLIP's loss on the batch and on offline negatives: `aoq.sigmoid_loss`, divided by the number of pairs.

    For models with a bias (`--siglip`, `init_logit_bias`). `negatives` are those of `OfflineClipLoss`.
    """

    def value(self, pairs: Similarities, scale: Float[Tensor, ""], bias: Float[Tensor, ""]) -> LossValue:
        return sigmoid_loss(pairs, temperature=1 / scale, bias=bias)


class OfflineQuintupletLoss(_ClipTableLoss):
    """AdapOffQuin, AOQ eq. (5), or OffQuin, eq. (4), if not `adaptive`, divided by the number of pairs.

    It uses cosines, so the model's temperature is ignored and stays as it is. Needs `negatives="quintuplet"`.
    """

    parts = ("online", "offline", "derived")

    def __init__(
        self,
        table: NegativeTable | ScreenedTable,
        *,
        adaptive: bool = True,
        margin_online: float = 0.2,
        margin_offline: float = 0.0,
        alpha: float = 0.3,
        beta: float = 1.5,
    ) -> None:
        super().__init__(table, negatives="quintuplet")
        function = partial(adap_off_quin, alpha=alpha, beta=beta) if adaptive else off_quin
        self._function = partial(function, margin_online=margin_online, margin_offline=margin_offline)

    def value(self, pairs: Similarities, scale: Float[Tensor, ""], bias: Float[Tensor, ""]) -> LossValue:
        return self._function(pairs)


class DistilledLoss(TaughtLoss):
    """`loss` plus `weight` times `aoq.batch_distillation` on the teachers' scores of a batch's pairs.

    `loss` is one of these losses, or one of open_clip's on batches with `negatives=None`. `teachers` are the vectors
    (images, captions) of one teacher or several, in the table's order or found by `image_ids` and `caption_ids`:
    arrays, also memory-mapped, or tensors. Further options are those of `aoq.batch_distillation`.

    The term is a sum over the anchors of both directions divided by the number of pairs, so `weight` means the same
    with `OfflineQuintupletLoss` as in an experiment, and twice as much with ClipLoss and `OfflineClipLoss`, which are
    halved. Several processes share one batch; ClipLoss must then gather with gradients, without `local_loss`.
    """

    _is_checked = False

    def forward(self, *, output_dict: bool = False, **outputs: Any) -> Tensor | dict[str, Tensor]:
        """Take the model's outputs; return the loss, or a dict of its terms with `distillation_loss`."""
        rows, groups = outputs.get("rows"), getattr(self.loss, "groups", 1)
        if rows is None or not self._is_checked:
            rows, self._is_checked = _checked_rows(rows, self.loss, groups, self._table), True
        anchors = rows[:, 2].argsort(stable=True)[: len(rows) // groups]
        vectors = [outputs[f"{side}_features"][anchors] for side in ("image", "text")]
        if not isinstance(self.loss, _ClipTableLoss):
            del outputs["rows"]
        terms = self.loss(**outputs, output_dict=True)
        terms = {**terms, "distillation_loss": self.distillation_term(vectors, rows[anchors, :2].unbind(1))}
        return terms if output_dict else sum(terms.values())
