"""Losses on offline negatives for sentence-transformers, on its columns and labels, in one or more processes.

Embeddings are normalised; the losses of `aoq` are divided by the number of pairs. Several processes gather embeddings
and labels, so each computes the loss of the whole batch, and the gradient equals that of a single process with all of
it. With `mini_batch_size`, embeddings are computed in mini-batches and their gradients cached (GradCache): the loss and
gradients stay the same.

With several processes, mini-batches and separate towers for images and captions, the trainer's
`ddp_find_unused_parameters` must be True. Otherwise it must be False, and parameters without a gradient, such as CLIP's
logit_scale, must be frozen.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from sentence_transformers.base.losses.gradcache import CachedLossMixin
from sentence_transformers.base.losses.merged_forward import embed_columns
from torch import Tensor, nn
from torch.nn import functional as F

from aoq.integrations.sentence_transformers.data import ROW_COLUMNS
from aoq.integrations.shared import gather, group_similarities, process_count
from aoq.pipeline.losses.aoq import adap_off_quin, adap_off_tri, off_quin, off_tri
from aoq.pipeline.losses.companions import with_companions
from aoq.pipeline.losses.info_nce import LearntTemperature, adap_info_nce, info_nce
from aoq.pipeline.losses.pace import Pace
from aoq.pipeline.losses.similarities import LossValue, Similarities, positive_pairs
from aoq.pipeline.losses.triplet import online_triplet

CITATION = """
@inproceedings{chen2020adaptive,
    title={Adaptive Offline Quintuplet Loss for Image-Text Matching},
    author={Chen, Tianlang and Deng, Jiajun and Luo, Jiebo},
    booktitle={ECCV},
    year={2020}
}
"""
LOGGED_TERMS = ("online", "offline", "derived")
"""Terms of a quintuplet loss that the trainer logs."""
Companions = Literal["anchors"]


def embed_sides(model: nn.Module, features: list[Mapping[str, Any]]) -> list[Tensor]:
    """Embed the columns of rows, all images in one forward and all captions in another."""
    columns: list[Tensor] = [torch.empty(0)] * len(features)
    for side in (slice(0, None, 2), slice(1, None, 2)):
        columns[side] = embed_columns(model, features[side], separate_first=False)
    return columns


class _TableLoss(CachedLossMixin, nn.Module):
    """Base of losses on the columns of `TableData`; a subclass names its columns and its loss on similarities."""

    mini_batch_size: int
    drawn: ClassVar[int]
    """Number of images in a row, unless companions are anchors."""

    def __init__(self, model: nn.Module, companions: Companions | None, mini_batch_size: int | None) -> None:
        super().__init__()
        if companions not in ("anchors", None):
            raise ValueError(f'companions is {companions!r}; it is "anchors" or None.')
        self.model, self.companions, self.mini_batch_size = model, companions, mini_batch_size or 0
        self.uses_gradient_cache = mini_batch_size is not None
        self.groups = self.drawn if companions is None else 1
        self.options: dict[str, Any] = {"companions": companions, "mini_batch_size": mini_batch_size}

    @abstractmethod
    def value(self, pairs: Similarities) -> LossValue:
        """Compute the loss, summed over the pairs."""

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
        # The figures are detached; this adds 0, with the gradient of the total.
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

    @property
    def citation(self) -> str:
        return CITATION

    def _checked(self, columns: int, labels: Tensor | None) -> Tensor:
        wanted = ROW_COLUMNS[: 2 * self.groups]
        if columns != len(wanted):
            raise ValueError(
                f"{type(self).__name__} takes the columns {', '.join(wanted)}, and the data has {columns}; make "
                "it with aoq's TableData, or drop the other columns."
            )
        if labels is None or labels.ndim != 2 or labels.shape[1] != self.groups:
            shape = "none" if labels is None else f"of shape {tuple(labels.shape)}"
            raise ValueError(
                f"the labels are {shape}; {type(self).__name__} needs the numbers of the {self.groups} images in each "
                "row, as aoq's TableData gives them."
            )
        return labels

    def _value(self, columns: list[Tensor], labels: Tensor | None) -> tuple[LossValue, int]:
        """Return the sum over the pairs of all processes, and their number."""
        labels = self._checked(len(columns), labels)
        columns = [self._in_order(gather(F.normalize(column.float(), dim=1))) for column in columns]
        labels = self._in_order(gather(labels))
        is_positive = positive_pairs(labels[:, 0], mask_positives=True)
        images, captions = torch.cat(columns[::2]), torch.cat(columns[1::2])
        return self.value(group_similarities(images, captions, labels.T.flatten(), is_positive)), len(labels)

    def _in_order(self, gathered: Tensor) -> Tensor:
        """Order gathered triples by place: the first pairs of all processes, then the second and the third ones."""
        if self.companions is None or process_count() == 1:
            return gathered
        return gathered.unflatten(0, (process_count(), 3, -1)).transpose(0, 1).flatten(0, 2)


class _Hinges(_TableLoss):
    """A triplet or quintuplet loss, optionally with hardness adapted by `aoq.Pace`."""

    functions: ClassVar[tuple[Callable[..., LossValue], Callable[..., LossValue]]]
    """Loss functions without and with adaptive weights."""

    def __init__(
        self,
        model: nn.Module,
        *,
        adaptive: bool,
        margin_online: float = 0.2,
        margin_offline: float = 0.0,
        alpha: float = 0.3,
        beta: float = 1.5,
        start_up: Literal["auto"] | None = None,
        companions: Companions | None = None,
        mini_batch_size: int | None = None,
    ) -> None:
        super().__init__(model, companions, mini_batch_size)
        numbers = {"margin_online": margin_online, "margin_offline": margin_offline}
        numbers |= {"alpha": alpha, "beta": beta} if adaptive else {}
        self.options |= {**numbers, "adaptive": adaptive, "start_up": start_up}
        function, online = self.functions[adaptive], online_triplet
        if companions == "anchors":
            function, online = with_companions(function), with_companions(online)
        self._function = partial(function, **numbers)
        self._online = partial(online, margin=margin_online)
        self._pace = None if start_up is None else Pace(margin_online)

    def value(self, pairs: Similarities) -> LossValue:
        if self._pace is not None:
            pairs = self._pace.follow(pairs, self._online) if self.training else self._pace.at_level(pairs)
        return self._function(pairs)


class OfflineQuintupletLoss(_Hinges):
    """AdapOffQuin, AOQ eq. (5), or OffQuin, eq. (4), if not `adaptive`, on the six columns of `TableData`.

    `companions="anchors"` takes two columns, image and caption, in batches of triples (`batches="triples"`).
    `start_up="auto"` adapts the hardness of online negatives to models that are not pretrained (`aoq.Pace`).
    """

    drawn, functions = 3, (off_quin, adap_off_quin)

    def __init__(self, model: nn.Module, *, adaptive: bool = True, **options: Any) -> None:
        super().__init__(model, adaptive=adaptive, **options)


class OfflineTripletLoss(_Hinges):
    """OffTri, AOQ eq. (3), on the first four columns of `TableData`; `adaptive` weighs it as in eq. (5)."""

    drawn, functions = 2, (off_tri, adap_off_tri)

    def __init__(self, model: nn.Module, *, adaptive: bool = False, **options: Any) -> None:
        super().__init__(model, adaptive=adaptive, **options)


class OfflineInfoNCELoss(_TableLoss):
    """InfoNCE in both directions with offline negatives as candidates, on the first four columns of `TableData`.

    This is `aoq.info_nce`, or `aoq.adap_info_nce` if `adaptive`. `learn_temperature` learns the temperature.
    """

    drawn = 2

    def __init__(
        self,
        model: nn.Module,
        *,
        adaptive: bool = False,
        temperature: float = 0.05,
        learn_temperature: bool = False,
        max_scale: float = 100.0,
        hardness_weight: float = 0.0,
        alpha: float = 0.3,
        beta: float = 1.5,
        companions: Companions | None = None,
        mini_batch_size: int | None = None,
    ) -> None:
        super().__init__(model, companions, mini_batch_size)
        self.numbers = {"temperature": temperature, "hardness_weight": hardness_weight}
        self.numbers |= {"alpha": alpha, "beta": beta} if adaptive else {}
        self.options |= {**self.numbers, "adaptive": adaptive, "learn_temperature": learn_temperature}
        function = adap_info_nce if adaptive else info_nce
        self._function = with_companions(function) if companions == "anchors" else function
        self.learnt = LearntTemperature(temperature=temperature, max_scale=max_scale) if learn_temperature else None

    def value(self, pairs: Similarities) -> LossValue:
        return self._function(pairs, **self.numbers | (self.learnt() if self.learnt is not None else {}))
