"""A loss of sentence-transformers, or one of ours, with a term by which the model learns the scores of teachers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from sentence_transformers.base.losses.gradcache import CachedLossMixin, uses_gradient_cache
from torch import Tensor, nn

from aoq.integrations.sentence_transformers.losses import embed_sides
from aoq.integrations.shared import TaughtLoss


class DistilledLoss(CachedLossMixin, TaughtLoss):
    """`loss`, and `weight` times `aoq.batch_distillation` on the teachers' scores of a batch's pairs.

    For the rows of `TableData(table, …, caption_rows=True)`. `teachers` are the vectors (images, captions) of one
    teacher or several, in the table's order or found by `image_ids` and `caption_ids`: arrays, also memory-mapped, or
    tensors. Further options are those of `aoq.batch_distillation`.

    The term is a sum over the anchors of both directions divided by the number of pairs of all processes, so it counts
    beside the losses here as in an experiment. MultipleNegativesRankingLoss averages over one direction, so beside it
    the term counts twice as much.

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
            self.mini_batch_size, self.mini_batch_num_tokens = (
                self.loss.mini_batch_size,
                self.loss.mini_batch_num_tokens,
            )

    def forward(
        self, sentence_features: Iterable[Mapping[str, Any]], labels: Tensor | None
    ) -> Tensor | dict[str, Tensor]:
        """Return the terms of the loss and `distillation_loss`, or with a cached loss their sum."""
        features = list(sentence_features)
        if labels is None or labels.ndim != 2 or labels.shape[1] != len(features) // 2 + 1:
            raise ValueError("the labels have no rows of captions; make the data with TableData(…, caption_rows=True).")
        if self.uses_gradient_cache:
            return CachedLossMixin.forward_cached(self, features, labels)
        columns = embed_sides(self.model, features)
        terms = self.loss.compute_loss_from_embeddings(columns, labels[:, :-1])
        terms = terms if isinstance(terms, dict) else {"base_loss": terms}
        return {**terms, "distillation_loss": self.taught(columns[:2], labels[:, [0, -1]].unbind(1))}

    def calculate_loss(self, reps: list[list[Tensor]], labels: Tensor, *, with_backward: bool = False) -> Tensor:
        total = self.loss.calculate_loss(reps, labels[:, :-1], with_backward=with_backward)
        taught = self.taught([torch.cat(parts) for parts in reps[:2]], labels[:, [0, -1]].unbind(1))
        if with_backward:
            taught.backward()
        return total + (taught.detach() if with_backward else taught)
