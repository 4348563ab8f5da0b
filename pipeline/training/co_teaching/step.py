"""What one network does with a batch: judge its pairs, or learn from them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from aoq.models.base import MatchingModel
from aoq.pipeline.config.co_teaching import CoTeaching
from aoq.pipeline.data.batches import PairData
from aoq.pipeline.losses import LossKind
from aoq.pipeline.losses.similarities import Similarities, positive_pairs
from aoq.pipeline.losses.soft_margin import (
    broadcast_labels,
    mean_triplet,
    own_margins,
    pair_losses,
    predicted_labels,
    refined_labels,
    row_margins,
    soft_margins,
    soft_triplet,
)
from aoq.pipeline.training.sampler import Drawn
from aoq.pipeline.training.step import Batch, Objective, descend, forward, read_batch, take_step


@dataclass(frozen=True)
class Network:
    """One of the two, with its optimizer and the section they are trained by."""

    model: MatchingModel
    optimizer: torch.optim.Optimizer
    section: CoTeaching
    device: torch.device

    @property
    def parameters(self) -> list[nn.Parameter]:
        return list(self.model.parameters())

    def read(self, pairs: PairData, rows: Int[np.ndarray, " batch"]) -> Batch:
        return read_batch(pairs, Drawn([(pairs.split.image_of[rows], rows.astype(np.int32))])).to(self.device)

    def losses(self, batch: Batch) -> Float[Tensor, " batch"]:
        return pair_losses(self._judged(batch), margin=self.section.margin)

    def labels(self, batch: Batch) -> Float[Tensor, " batch"]:
        """How well it finds each pair matched."""
        return predicted_labels(self._judged(batch), margin=self.section.margin)

    @torch.no_grad()
    def _judged(self, batch: Batch) -> Similarities:
        self.model.eval()
        matrix = self.model.similarity(
            self.model.encode_images(batch.images), self.model.encode_captions(batch.captions)
        )
        return Similarities(matrix, positive_pairs(batch.image_rows, mask_positives=self.section.mask_positives))

    def warm_up(self, batch: Batch) -> dict[str, float]:
        objective = self._objective(partial(mean_triplet, margin=self.section.margin))
        return self._learn(batch, objective)

    def learn_clean(self, batch: Batch, probabilities: Float[Tensor, " batch"]) -> dict[str, float]:
        """From pairs selected as clean, whose labels lie between 1 and its own prediction."""
        predicted = self.labels(batch)
        if self.section.soft_labels == "broadcast":
            return self._learn(batch, self._of_rows(broadcast_labels(probabilities, predicted)))
        return self._learn(batch, self._of_pairs(refined_labels(probabilities, predicted)))

    def learn_noisy(self, batch: Batch, labels: Float[Tensor, " batch"]) -> float:
        """The loss on the other pairs, with the labels that both networks predict.

        A model's auxiliary loss has no part in it: VSRN would learn to say of images what is not there; nor have NAAF's
        thresholds, which would be estimated of mismatched words.
        """
        broadcast = self.section.soft_labels == "broadcast"
        objective = self._of_rows(labels[:, None]) if broadcast else self._of_pairs(labels)
        self.model.train()
        value, _ = forward(self.model, batch, replace(objective, observes=False))
        descend(value.total, self.optimizer, self.parameters, self.section.gradient_clip)
        return float(value.total.detach())

    def _learn(self, batch: Batch, objective: Objective) -> dict[str, float]:
        self.model.train()
        clip = self.section.gradient_clip
        return take_step(self.model, self.optimizer, self.parameters, batch, objective, clip)

    def _of_pairs(self, labels: Float[Tensor, " batch"]) -> Objective:
        return self._objective(partial(soft_triplet, margins=own_margins(self._margins(labels))))

    def _of_rows(self, labels: Float[Tensor, "#batch #batch"]) -> Objective:
        return self._objective(partial(soft_triplet, margins=row_margins(self._margins(labels))))

    def _margins(self, labels: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        return soft_margins(labels, margin=self.section.margin, kind=self.section.soft_margin)

    def _objective(self, loss: partial) -> Objective:  # type: ignore[type-arg]
        return Objective(LossKind(loss, "none"), loss, self.section.mask_positives)
