"""Losses on offline negatives for sentence-transformers, on its columns and labels, in one or more processes.

Embeddings are normalised; the losses of `aoq` are divided by the number of pairs. Several processes gather embeddings
and labels, so the loss and its gradient equal those of one process with the whole batch. With `mini_batch_size`,
embeddings are computed in mini-batches and their gradients cached (GradCache), with the same result.

With several processes, mini-batches and separate towers for images and captions, the trainer's
`ddp_find_unused_parameters` must be True. Otherwise it must be False, and parameters without a gradient, such as CLIP's
logit_scale, must be frozen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Literal

import torch
from sentence_transformers.base.losses.gradcache import CachedLossMixin, uses_gradient_cache
from sentence_transformers.base.losses.merged_forward import embed_columns
from torch import Tensor, nn
from torch.nn import functional as F

from aoq.integrations.sentence_transformers.data import ROW_COLUMNS, row_columns
from aoq.integrations.shared import TaughtLoss, gather, group_similarities, processes
from aoq.pipeline.losses.aoq import adap_off_quin, adap_off_tri, off_quin, off_tri
from aoq.pipeline.losses.companions import with_companions
from aoq.pipeline.losses.info_nce import LearntTemperature, adap_info_nce, info_nce
from aoq.pipeline.losses.similarities import LossValue, Similarities, positive_pairs
from aoq.pipeline.tables.table import NegativeTable, ScreenedTable
from aoq.pipeline.training.batch_sampler import BatchSampler

LOGGED_TERMS = ("online", "offline", "derived")
"""Terms of a quintuplet loss that the trainer logs."""


def embed_sides(model: nn.Module, features: list[Mapping[str, Any]]) -> list[Tensor]:
    """Embed the columns of rows, all images in one forward and all captions in another."""
    columns: list[Tensor] = [torch.empty(0)] * len(features)
    for side in (slice(0, None, 2), slice(1, None, 2)):
        columns[side] = embed_columns(model, features[side], separate_first=False)
    return columns


class _ColumnLoss(CachedLossMixin, nn.Module):
    """Base of losses on the columns of `TableData`; a subclass names its columns and its loss on similarities."""

    mini_batch_size: int
    drawn: ClassVar[int]
    """Number of images in a row, unless companions are anchors."""
    functions: ClassVar[tuple[Callable[..., LossValue], Callable[..., LossValue]]]
    """Loss functions without and with adaptive weights."""

    def __init__(
        self,
        model: nn.Module,
        numbers: dict[str, float],
        *,
        adaptive: bool,
        alpha: float = 0.3,
        beta: float = 1.5,
        companions: Literal["anchors"] | None = None,
        mini_batch_size: int | None = None,
        negatives: int | None = None,
        table: NegativeTable | ScreenedTable | None = None,
    ) -> None:
        super().__init__()
        if companions not in ("anchors", None):
            raise ValueError(f'companions is {companions!r}; it is "anchors" or None.')
        if (negatives is None) != (table is None) or (negatives and (companions or self.drawn != 2)):
            raise ValueError(
                f"{type(self).__name__}: several `negatives` need the `table`, and OfflineInfoNCELoss or "
                "OfflineTripletLoss, without companions."
            )
        self._sampler = None
        if table is not None:
            self._sampler = BatchSampler(table, batch_size=2, companions="omit", negatives=negatives)
        self.model, self.companions, self.mini_batch_size = model, companions, mini_batch_size or 0
        self.uses_gradient_cache = mini_batch_size is not None
        self.columns = row_columns(negatives) if negatives else ROW_COLUMNS[: 2 * (1 if companions else self.drawn)]
        self.numbers = numbers | ({"alpha": alpha, "beta": beta} if adaptive else {})
        self.options: dict[str, Any] = {"companions": companions, "mini_batch_size": mini_batch_size}
        self.options |= {**self.numbers, "adaptive": adaptive}
        function = self.functions[adaptive]
        self._function = with_companions(function) if companions == "anchors" else function

    def value(self, pairs: Similarities) -> LossValue:
        """Compute the loss, summed over the pairs."""
        return self._function(pairs, **self.numbers)

    def get_config_dict(self) -> dict[str, Any]:
        """Return the options for the model card."""
        return self.options

    def forward(
        self, sentence_features: Iterable[Mapping[str, Any]], labels: Tensor | None
    ) -> Tensor | dict[str, Tensor]:
        """Return the mean over the pairs of all processes, or the terms that add up to it."""
        features = list(sentence_features)
        if self.uses_gradient_cache:
            return CachedLossMixin.forward_cached(self, features, labels)
        return self.compute_loss_from_embeddings(embed_sides(self.model, features), labels)

    def compute_loss_from_embeddings(
        self, embeddings: list[Tensor], labels: Tensor | None
    ) -> Tensor | dict[str, Tensor]:
        loss, size = self._value(embeddings, labels)
        if not all(part in loss.figures for part in LOGGED_TERMS):
            return loss.total / size
        parts = {part: loss.figures[part] / size for part in LOGGED_TERMS}
        # The figures are detached; this adds 0 with the total's gradient.
        parts["online"] = parts["online"] + (loss.total - loss.total.detach()) / size
        return {f"{part}_loss": value for part, value in parts.items()}

    def calculate_loss(
        self, reps: list[list[Tensor]], labels: Tensor | None = None, *, with_backward: bool = False
    ) -> Tensor:
        loss, size = self._value([torch.cat(parts) for parts in reps], labels)
        total = loss.total / size
        if with_backward:
            total.backward()
            total = total.detach()
        return total

    def _checked(self, columns: int, labels: Tensor | None) -> Tensor:
        if columns != len(self.columns):
            raise ValueError(
                f"{type(self).__name__} takes the columns {', '.join(self.columns)}, but the data has {columns}; make "
                "it with aoq's TableData, or drop the other columns."
            )
        numbers = columns if self._sampler is not None else columns // 2
        if labels is None or labels.ndim != 2 or labels.shape[1] != numbers:
            shape = "none" if labels is None else f"of shape {tuple(labels.shape)}"
            raise ValueError(
                f"the labels are {shape}; {type(self).__name__} needs {numbers} numbers in each row, as "
                "aoq's TableData gives them."
            )
        return labels

    def _value(self, columns: list[Tensor], labels: Tensor | None) -> tuple[LossValue, int]:
        """Return the sum over the pairs of all processes, and their number."""
        labels = self._checked(len(columns), labels)
        columns = [self._in_order(gather(F.normalize(column.float(), dim=1))) for column in columns]
        labels, excluded = self._in_order(gather(labels)), None
        is_positive = positive_pairs(labels[:, 0], mask_positives=True)
        images, captions = torch.cat(columns[::2]), torch.cat(columns[1::2])
        rows = labels[:, : len(columns) // 2].T.flatten()
        if self._sampler is not None:
            pairs = torch.stack([rows, labels[:, len(columns) // 2 :].T.flatten()], dim=1)
            excluded = self._sampler.excluded(pairs)
            is_positive = torch.as_tensor(self._sampler.is_positive(pairs[: len(labels)]))
        return self.value(group_similarities(images, captions, rows, is_positive, excluded)), len(labels)

    def _in_order(self, gathered: Tensor) -> Tensor:
        """Order gathered triples by place: the first pairs of all processes, then the second, then the third ones."""
        if self.companions is None:
            return gathered
        return gathered.unflatten(0, (processes().count, 3, -1)).transpose(0, 1).flatten(0, 2)


class _Hinges(_ColumnLoss):
    def __init__(
        self, model: nn.Module, *, margin_online: float = 0.2, margin_offline: float = 0.0, **options: Any
    ) -> None:
        super().__init__(model, {"margin_online": margin_online, "margin_offline": margin_offline}, **options)


class OfflineQuintupletLoss(_Hinges):
    """AdapOffQuin, AOQ eq. (5), or OffQuin, eq. (4), if not `adaptive`, on the six columns of `TableData`.

    `companions="anchors"` takes two columns, image and caption, in batches of triples (`batches="triples"`).
    """

    drawn, functions = 3, (off_quin, adap_off_quin)

    def __init__(self, model: nn.Module, *, adaptive: bool = True, **options: Any) -> None:
        super().__init__(model, adaptive=adaptive, **options)


class OfflineTripletLoss(_Hinges):
    """OffTri, AOQ eq. (3), on the first four columns of `TableData`; `adaptive` weighs it as in eq. (5).

    `negatives` and `table` are those of `OfflineInfoNCELoss`.
    """

    drawn, functions = 2, (off_tri, adap_off_tri)

    def __init__(self, model: nn.Module, *, adaptive: bool = False, **options: Any) -> None:
        super().__init__(model, adaptive=adaptive, **options)


class OfflineInfoNCELoss(_ColumnLoss):
    """InfoNCE in both directions with offline negatives as candidates, on the first four columns of `TableData`.

    This is `aoq.info_nce`, or `aoq.adap_info_nce` if `adaptive`. `learn_temperature` learns the temperature. With
    `negatives=K` and the data's `table` (screened, if it is), it takes the columns of `TableData(…, negatives=K)`, and
    every drawn image and caption is a candidate for all pairs of the batch, except true and suspected pairs.
    """

    drawn, functions = 2, (info_nce, adap_info_nce)

    def __init__(
        self,
        model: nn.Module,
        *,
        adaptive: bool = False,
        temperature: float = 0.05,
        learn_temperature: bool = False,
        max_scale: float = 100.0,
        hardness_weight: float = 0.0,
        **options: Any,
    ) -> None:
        numbers = {"temperature": temperature, "hardness_weight": hardness_weight}
        super().__init__(model, numbers, adaptive=adaptive, **options)
        self.options |= {"learn_temperature": learn_temperature}
        self.learnt = LearntTemperature(temperature=temperature, max_scale=max_scale) if learn_temperature else None

    def value(self, pairs: Similarities) -> LossValue:
        return self._function(pairs, **self.numbers | (self.learnt() if self.learnt is not None else {}))


class DistilledLoss(CachedLossMixin, TaughtLoss):
    """`loss` plus `weight` times `aoq.batch_distillation` on the teachers' scores of a batch's pairs.

    Takes rows of `TableData(table, …, caption_rows=True)`. `teachers` are the vectors (images, captions) of one
    teacher or several, in the table's order or found by `image_ids` and `caption_ids`: arrays, also memory-mapped, or
    tensors. Further options are those of `aoq.batch_distillation`.

    The term is a sum over the anchors of both directions divided by the number of pairs of all processes, so `weight`
    means the same with the losses here as in an experiment, and twice as much with MultipleNegativesRankingLoss, which
    averages over one direction.

    Each batch is embedded once, so `loss` must have `compute_loss_from_embeddings`, or be cached (GradCache). Put
    MatryoshkaLoss around this loss.
    """

    def __init__(self, loss: nn.Module, *table_and_teachers: Any, **options: Any) -> None:
        super().__init__(loss, *table_and_teachers, **options)
        self.uses_gradient_cache = uses_gradient_cache(loss) and isinstance(loss, CachedLossMixin)
        if not self.uses_gradient_cache and not hasattr(loss, "compute_loss_from_embeddings"):
            raise ValueError(
                f"{type(loss).__name__} embeds a batch by itself, which would then be embedded twice; give a loss that "
                "has compute_loss_from_embeddings, or a cached one without a guide."
            )
        self.model = self.loss.model
        if self.uses_gradient_cache:
            self.mini_batch_size = self.loss.mini_batch_size
            self.mini_batch_num_tokens = self.loss.mini_batch_num_tokens

    def forward(
        self, sentence_features: Iterable[Mapping[str, Any]], labels: Tensor | None
    ) -> Tensor | dict[str, Tensor]:
        """Return the terms of the loss and `distillation_loss`, or with a cached loss their sum."""
        features = list(sentence_features)
        if labels is None or labels.ndim != 2 or labels.shape[1] not in (len(features) // 2 + 1, len(features)):
            raise ValueError("the labels have no rows of captions; make the data with TableData(…, caption_rows=True).")
        if self.uses_gradient_cache:
            return CachedLossMixin.forward_cached(self, features, labels)
        columns, (labels, rows) = embed_sides(self.model, features), _split_labels(labels, len(features))
        terms = self.loss.compute_loss_from_embeddings(columns, labels)
        terms = terms if isinstance(terms, dict) else {"base_loss": terms}
        return {**terms, "distillation_loss": self.distillation_term(columns[:2], rows)}

    def calculate_loss(self, reps: list[list[Tensor]], labels: Tensor, *, with_backward: bool = False) -> Tensor:
        labels, rows = _split_labels(labels, len(reps))
        total = self.loss.calculate_loss(reps, labels, with_backward=with_backward)
        term = self.distillation_term([torch.cat(parts) for parts in reps[:2]], rows)
        if with_backward:
            term.backward()
        return total + (term.detach() if with_backward else term)


def _split_labels(labels: Tensor, columns: int) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return the labels of the loss, and the rows of each pair's image and caption."""
    groups = columns // 2
    return labels if groups > 1 and labels.shape[1] == columns else labels[:, :-1], labels[:, [0, groups]].unbind(1)
