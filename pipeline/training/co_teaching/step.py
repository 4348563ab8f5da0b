"""One network's step: judge the pairs of a batch, or learn from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from aoq.models.base import MatchingModel
from aoq.pipeline.config.training import CoTeaching
from aoq.pipeline.data.batches import PairData
from aoq.pipeline.losses.pace import Pace
from aoq.pipeline.losses.similarities import LossValue, Similarities, positive_pairs
from aoq.pipeline.losses.soft_margin import (
    mean_triplet,
    own_margins,
    pair_losses,
    predicted_labels,
    refined_labels,
    row_margins,
    soft_margins,
    soft_triplet,
)
from aoq.pipeline.training.parts import WHOLE, Cut
from aoq.pipeline.training.sampler import Draw, Group
from aoq.pipeline.training.step import Batch, Objective, descend, forward, read_batch, take_step

Loss = Callable[[Similarities], LossValue]
Follow = Callable[[Similarities], Similarities]


def read_pairs(pairs: PairData, rows: Int[np.ndarray, " batch"], cut: Cut = WHOLE) -> Batch:
    """Read this process's part of the pairs in these rows."""
    own = cut.for_batch(len(rows)).processes.rows(len(rows))
    return read_batch(pairs, Draw([Group(pairs.split.image_of[rows], rows.astype(np.int32))]), own)


@dataclass(frozen=True)
class Network:
    """One of the two networks, with its optimizer and the section that trains it."""

    model: MatchingModel
    optimizer: torch.optim.Optimizer
    section: CoTeaching
    device: torch.device
    pace: Pace | None = None
    """Pace of its online negatives; None makes them the hardest."""
    cut: Cut = WHOLE
    """Division of batches among processes, each of which judges and learns from the whole."""

    def read(self, pairs: PairData, rows: Int[np.ndarray, " batch"]) -> Batch:
        return read_pairs(pairs, rows, self.cut).to(self.device)

    def losses(self, batch: Batch) -> Float[Tensor, " batch"]:
        return pair_losses(self._judged(batch), margin=self.section.margin)

    def labels(self, batch: Batch) -> Float[Tensor, " batch"]:
        """Predict how well each pair matches."""
        return predicted_labels(self._judged(batch), margin=self.section.margin)

    @torch.no_grad()
    def _judged(self, batch: Batch) -> Similarities:
        self.model.eval()
        size = len(batch.image_rows)
        matrix = self.cut.for_batch(size).scores(self.model, batch.images, batch.captions, size).matrix(lambda: False)
        return Similarities(matrix, positive_pairs(batch.image_rows, mask_positives=self.section.mask_positives))

    def warm_up(self, batch: Batch) -> dict[str, Tensor]:
        return self._learn(batch, partial(mean_triplet, margin=self.section.margin))

    def learn_clean(self, batch: Batch, probabilities: Float[Tensor, " batch"]) -> dict[str, Tensor]:
        """Learn from pairs selected as clean, whose labels lie between 1 and its own prediction.

        The figure `plateau` is the loss where all pairs are equally similar: each pair's margin, in both directions.
        With `soft_labels = "broadcast"` it is approximate.
        """
        clean = probabilities[:, None] if self._broadcasts else probabilities
        loss = self._soft_loss(refined_labels(clean, self.labels(batch)))
        figures = self._learn(batch, loss, None if self.pace is None else partial(self.pace.follow, loss=loss))
        if self.pace is not None:
            figures["hardness"] = self.pace.figure
        return {**figures, "plateau": 2 * len(batch.image_rows) * figures["margin"]}

    def learn_noisy(self, batch: Batch, labels: Float[Tensor, " batch"]) -> Float[Tensor, ""]:
        """Learn from the other pairs, with the labels that both networks predict; return the loss.

        A model's auxiliary loss has no part in it: VSRN would learn to say of images what is not there; nor have NAAF's
        thresholds, which would be estimated of mismatched words.
        """
        loss = self._soft_loss(labels[:, None] if self._broadcasts else labels)
        self.model.train()
        pace = None if self.pace is None else self.pace.at_level  # which wrong pairs do not change
        objective = Objective(loss, self.section.mask_positives, pace=pace)
        of_batch = self.cut.for_batch(len(batch.image_rows))
        value, _, _ = forward(self.model, batch, objective, of_batch)
        descend(value.total, self.optimizer, self.section.gradient_clip, self.cut.gather(of_batch))
        return value.total.detach()

    @property
    def _broadcasts(self) -> bool:
        return self.section.soft_labels == "broadcast"

    def _soft_loss(self, labels: Float[Tensor, " batch"] | Float[Tensor, "#batch #batch"]) -> Loss:
        """Make the loss for a label per pair, or per entry of the matrix."""
        margins = soft_margins(labels, margin=self.section.margin, kind=self.section.soft_margin)
        return partial(soft_triplet, margins=(own_margins if labels.ndim == 1 else row_margins)(margins))

    def _learn(self, batch: Batch, loss: Loss, pace: Follow | None = None) -> dict[str, Tensor]:
        objective = Objective(loss, self.section.mask_positives, pace=pace)
        return take_step(self.model, self.optimizer, batch, objective, self.section.gradient_clip, self.cut)
