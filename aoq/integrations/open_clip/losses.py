"""Losses on offline negatives in the place of open_clip's: called with the model's output, features and rows.

They are those of `aoq` on cosines, scaled as open_clip scales: with a table's negatives left out, and no two pairs of a
batch that match, `OfflineClipLoss` is its ClipLoss and `OfflineSigLipLoss` its SigLipLoss. With several processes
features are gathered with their gradients, so each has the loss of the whole batch, and after DistributedDataParallel
has averaged, the gradient is exactly that of one process with all of it. Batches that are accumulated
(`--accum-freq`) are one batch as well.
"""

from __future__ import annotations

from abc import abstractmethod
from functools import partial
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.distributed.nn.functional import all_gather

from aoq.integrations.open_clip.rows import DRAWN, GROUPS
from aoq.pipeline.losses.aoq import adap_off_quin, off_quin
from aoq.pipeline.losses.info_nce import adap_info_nce, info_nce
from aoq.pipeline.losses.offline_similarities import offline_similarities
from aoq.pipeline.losses.sigmoid import sigmoid_loss
from aoq.pipeline.losses.similarities import LossValue, Similarities
from aoq.pipeline.tables.pairs import pair_keys
from aoq.pipeline.tables.screens.screened import ScreenedTable, parts_of
from aoq.pipeline.tables.table import NegativeTable

ROWS = 512
"""Rows of the matrix of true pairs at a time: looking them up takes 24 bytes a pair."""


class TableLoss(nn.Module):
    """A loss on batches of `TableData`; true pairs of the table are no negatives, whichever process they are on.

    Called as open_clip calls its own: `loss(**model(images, texts), output_dict=True)`, where the model is one of
    `carry_rows`.
    """

    _true: Tensor
    parts: ClassVar[tuple[str, ...]]
    """Figures of the loss on similarities that add up to it; a single name is that of the whole."""

    def __init__(self, table: NegativeTable | ScreenedTable, groups: int) -> None:
        super().__init__()
        table = parts_of(table).table
        if table.positives is None:
            raise ValueError("the table does not say which pairs are true; mine it with --pairs or --per-image.")
        self.groups, self._sides = groups, (len(table.i2t), len(table.t2i))
        keys = pair_keys(table.positives[:, 0], table.positives[:, 1], self._sides[1])
        self.register_buffer("_true", torch.from_numpy(keys).unique(), persistent=False)
        self._is_checked = False

    @abstractmethod
    def value(self, pairs: Similarities, scale: Float[Tensor, ""], bias: Float[Tensor, ""]) -> LossValue:
        """The loss as open_clip scales it."""

    def forward(
        self,
        image_features: Float[Tensor, "pairs D"],
        text_features: Float[Tensor, "pairs D"],
        logit_scale: Float[Tensor, "*one"],
        logit_bias: Float[Tensor, "*one"] | None = None,
        rows: Int[Tensor, "pairs 3"] | None = None,
        output_dict: bool = False,
    ) -> Tensor | dict[str, Tensor]:
        """The loss of the batch on all processes; as a dict, its terms, which add up to it."""
        if rows is None:
            raise ValueError(
                "the batch carries no rows of the table; read it with aoq's TableData, and hand the model to "
                "carry_rows before it is wrapped."
            )
        images, captions, rows = (_of_all(part) for part in (image_features, text_features, rows))
        if not self._is_checked:
            self._check(rows)
            self._is_checked = True
        order = rows[:, 2].argsort(stable=True)  # processes, and batches that are accumulated, stand one after another
        images, captions, rows = images[order].float(), captions[order].float(), rows[order]
        scale, bias = logit_scale.float().sum(), torch.zeros(()).to(images)
        if logit_bias is not None:
            bias = logit_bias.float().sum()
        with torch.autocast(images.device.type, enabled=False):
            found = self.value(self._similarities(images, captions, rows), scale, bias)
            total = found.total + 0 * (scale + bias)  # DistributedDataParallel waits for all gradients
        if not output_dict:
            return total
        parts = {part: found.figures[part] for part in self.parts[1:]}
        return {f"{self.parts[0]}_loss": total - sum(parts.values()), **{f"{k}_loss": v for k, v in parts.items()}}

    def _similarities(
        self, images: Float[Tensor, "pairs D"], captions: Float[Tensor, "pairs D"], rows: Int[Tensor, "pairs 3"]
    ) -> Similarities:
        size, offline = len(rows) // self.groups, None
        if self.groups > 1:
            offline = offline_similarities(images, captions, rows[:, 0], companions=self.groups == 3)
        return Similarities(images[:size] @ captions[:size].T, self._are_true(rows[:size]), offline)

    def _are_true(self, rows: Int[Tensor, "batch 3"]) -> Bool[Tensor, "batch batch"]:
        last, found = len(self._true) - 1, []
        for images in rows[:, 0].split(ROWS):
            keys = images[:, None] * self._sides[1] + rows[None, :, 1]
            found.append(self._true[torch.searchsorted(self._true, keys).clamp(max=last)] == keys)
        return torch.cat(found)

    def _check(self, rows: Int[Tensor, "pairs 3"]) -> None:
        """Check the first batch only, since this waits for the device."""
        counts = rows[:, 2].bincount().tolist()
        wanted = next(name for name, groups in DRAWN.items() if groups == self.groups)
        if len(counts) != self.groups or len({*counts}) > 1:
            raise ValueError(
                f"{type(self).__name__} takes equal groups of pairs ({', '.join(GROUPS[: self.groups])}), and the "
                f"batch has {counts}; make it with TableData.loader(negatives={wanted!r})."
            )
        for side, column, count in zip(("image", "caption"), rows.T, self._sides, strict=False):
            if (last := int(column.max())) >= count or int(column.min()) < 0:
                raise ValueError(
                    f"the batch names {side} {last}, and the table of the loss has {side}s 0 to {count - 1}; give data "
                    "and loss the same table."
                )


class OfflineClipLoss(TableLoss):
    """InfoNCE in both directions on the negatives of the batch, and each anchor's offline negative as a further column.

    `aoq.info_nce` at the model's temperature, or with `adaptive` `aoq.adap_info_nce`, halved and averaged over the
    pairs as CLIP does it. Without `negatives` on those of the batch alone.
    """

    parts = ("contrastive",)

    def __init__(
        self,
        table: NegativeTable | ScreenedTable,
        *,
        negatives: Literal["offline"] | None = "offline",
        adaptive: bool = False,
        alpha: float = 0.3,
        beta: float = 1.5,
        hardness_weight: float = 0.0,
    ) -> None:
        super().__init__(table, DRAWN[negatives])
        function = partial(adap_info_nce, alpha=alpha, beta=beta) if adaptive else info_nce
        self._function = partial(function, hardness_weight=hardness_weight)

    def value(self, pairs: Similarities, scale: Float[Tensor, ""], bias: Float[Tensor, ""]) -> LossValue:
        return _scaled(self._function(pairs, temperature=1 / scale), 2 * len(pairs.matrix))


class OfflineSigLipLoss(TableLoss):
    """SigLIP's loss on the pairs of the batch and on offline ones: `aoq.sigmoid_loss`, divided by the number of pairs.

    For models with a bias (`--siglip`, `init_logit_bias`). Without `negatives` on the pairs of the batch alone.
    """

    parts = ("contrastive",)

    def __init__(
        self, table: NegativeTable | ScreenedTable, *, negatives: Literal["offline"] | None = "offline"
    ) -> None:
        super().__init__(table, DRAWN[negatives])

    def value(self, pairs: Similarities, scale: Float[Tensor, ""], bias: Float[Tensor, ""]) -> LossValue:
        return _scaled(sigmoid_loss(pairs, temperature=1 / scale, bias=bias), len(pairs.matrix))


class OfflineQuintupletLoss(TableLoss):
    """AdapOffQuin, AOQ eq. (5), or without `adaptive` OffQuin, eq. (4), divided by the number of pairs.

    On cosines: the model's temperature has no part in it, and stays as it is. Needs `negatives="quintuplet"`.
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
        super().__init__(table, DRAWN["quintuplet"])
        function = partial(adap_off_quin, alpha=alpha, beta=beta) if adaptive else off_quin
        self._function = partial(function, margin_online=margin_online, margin_offline=margin_offline)

    def value(self, pairs: Similarities, scale: Float[Tensor, ""], bias: Float[Tensor, ""]) -> LossValue:
        return _scaled(self._function(pairs), len(pairs.matrix))


def _scaled(found: LossValue, count: int) -> LossValue:
    return LossValue(found.total / count, {name: figure / count for name, figure in found.figures.items()})


def _of_all(part: Tensor) -> Tensor:
    """The rows of all processes, with their gradients."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return part
    if part.is_floating_point():
        return torch.cat(all_gather(part.contiguous()))
    found = [torch.empty_like(part) for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather(found, part.contiguous())
    return torch.cat(found)
