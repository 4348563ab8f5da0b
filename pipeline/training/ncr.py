"""NCR's parts: the division into clean and noisy pairs, their batches, and a network's steps on them.

Learning with Noisy Correspondence for Cross-modal Matching (Huang et al., NeurIPS 2021).
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Int, Int64
from torch import Tensor

from aoq.models.base import MatchingModel
from aoq.pipeline.config.training import CoTeaching
from aoq.pipeline.data.batches import PairData, steps_per_epoch
from aoq.pipeline.extras import import_extra
from aoq.pipeline.losses import soft_margin
from aoq.pipeline.losses.pace import Pace
from aoq.pipeline.losses.similarities import Similarities, positive_pairs
from aoq.pipeline.training.batches import Batch, matched, read_batch
from aoq.pipeline.training.chunks import UNCUT, BatchScores, Cut
from aoq.pipeline.training.step import Objective, descend, forward, take_step


def scikit_learn() -> list[Any]:
    """Import scikit-learn late: it takes as long as all of torch, and only co-teaching needs it."""
    modules = ("sklearn.exceptions", "sklearn.mixture", "threadpoolctl")
    return [import_extra(name, "ncr", "co-teaching") for name in modules]


def clean_probabilities(losses: Float[np.ndarray, " pairs"], *, seed: int) -> Float32[np.ndarray, " pairs"]:
    """Return the posterior of the lower of two Gaussians fitted to the losses; 1 for all if they are equal."""
    spread = losses.max() - losses.min()
    if spread == 0:
        return np.ones(len(losses), dtype=np.float32)
    scaled = ((losses - losses.min()) / spread).astype(np.float64)[:, None]
    exceptions, mixtures, threads = scikit_learn()
    mixture = mixtures.GaussianMixture(2, max_iter=10, tol=1e-2, reg_covar=5e-4, random_state=seed)
    with threads.threadpool_limits(1), warnings.catch_warnings():  # several threads sum in any order
        warnings.simplefilter("ignore", exceptions.ConvergenceWarning)  # NCR stops after ten iterations
        posterior = mixture.fit(scaled).predict_proba(scaled)
    return posterior[:, mixture.means_.argmin()].astype(np.float32)


def selected_clean(probabilities: Float[np.ndarray, " pairs"], *, threshold: float) -> Bool[np.ndarray, " pairs"]:
    """Select pairs above the threshold; if that is all of them, the least probable n // 100 + 1 are flagged as noisy.

    >>> selected_clean(np.array([0.9, 0.2, 0.6]), threshold=0.5)
    array([ True, False,  True])
    >>> selected_clean(np.array([0.9, 0.8, 0.6]), threshold=0.5)
    array([ True,  True, False])
    """
    is_clean = probabilities > threshold
    if is_clean.all():
        is_clean[np.argsort(probabilities, kind="stable")[: len(is_clean) // 100 + 1]] = False
    return is_clean


@dataclass(frozen=True)
class PairBatches:
    """Pairs in batches, as a function of `key`: each pair once, then all in another order, and so on.

    A batch of a single pair, which has no negative, is left out.
    """

    rows: Int64[np.ndarray, " pairs"]
    batch_size: int
    key: tuple[int, ...]

    @property
    def steps(self) -> int:
        """Number of batches until the pairs are used up."""
        return steps_per_epoch(len(self.rows), self.batch_size)

    def __getitem__(self, step: int) -> Int64[np.ndarray, " batch"]:
        turn, number = divmod(step, self.steps)
        order = random_order(len(self.rows), *self.key, turn)
        return self.rows[order[number * self.batch_size :][: self.batch_size]]


@lru_cache(maxsize=2)
def random_order(count: int, *key: int) -> Int64[np.ndarray, " count"]:
    return np.random.default_rng(key).permutation(count)


def read_matched(pairs: PairData, rows: Int[np.ndarray, " batch"], cut: Cut = UNCUT) -> Batch:
    """Read this process's part of the pairs in these rows."""
    return read_batch(pairs, matched(pairs, rows.astype(np.int32)), cut.rows(len(rows)))


@dataclass(frozen=True)
class Network:
    model: MatchingModel
    optimizer: torch.optim.Optimizer
    section: CoTeaching
    pace: Pace | None = None
    """Pace of its online negatives; None makes them the hardest."""
    cut: Cut = UNCUT
    """Division of batches among processes, each of which judges and learns from the whole."""

    def losses(self, batch: Batch) -> Float[Tensor, " batch"]:
        return soft_margin.pair_losses(self._judged(batch), margin=self.section.margin)

    def labels(self, batch: Batch) -> Float[Tensor, " batch"]:
        return soft_margin.predicted_labels(self._judged(batch), margin=self.section.margin)

    @torch.no_grad()
    def _judged(self, batch: Batch) -> Similarities:
        self.model.eval()
        scores = BatchScores(self.model, batch.images, batch.captions, batch.size, self.cut)
        is_positive = positive_pairs(batch.image_rows, mask_positives=self.section.mask_positives)
        return Similarities(scores.matrix(lambda: False), is_positive)

    def warm_up(self, batch: Batch) -> dict[str, Tensor]:
        loss = partial(soft_margin.mean_triplet, margin=self.section.margin)
        objective = Objective(loss, self.section.mask_positives)
        return take_step(self.model, self.optimizer, batch, objective, self.section.gradient_clip, self.cut)

    def learn_clean(self, batch: Batch, probabilities: Float[Tensor, " batch"]) -> dict[str, Tensor]:
        """Learn from pairs selected as clean, whose labels lie between the network's own prediction and 1."""
        labels = soft_margin.refined_labels(self._by_entry(probabilities), self.labels(batch))
        objective = self._soft_objective(labels)
        if self.pace is not None:
            objective = replace(objective, pace=partial(self.pace.follow, loss=objective.loss))
        figures = take_step(self.model, self.optimizer, batch, objective, self.section.gradient_clip, self.cut)
        if self.pace is not None:
            figures["hardness"] = self.pace.figure
        return {**figures, "plateau": 2 * batch.size * figures["margin"]}  # about, with soft_labels = "broadcast"

    def learn_noisy(self, batch: Batch, labels: Float[Tensor, " batch"]) -> Float[Tensor, ""]:
        """Learn from the other pairs, with the labels that both networks predict; return the loss."""
        objective = self._soft_objective(self._by_entry(labels))
        if self.pace is not None:  # wrong pairs do not change the level
            objective = replace(objective, pace=self.pace.at_level)
        # VSRN would learn captions of other images, and NAAF estimate its thresholds from mismatched words.
        value, _auxiliary, _observe = forward(self.model.train(), batch, objective, self.cut)
        descend(value.total, self.optimizer, self.section.gradient_clip, self.cut, batch.size)
        return value.total.detach()

    def _by_entry(self, numbers: Float[Tensor, " batch"]) -> Float[Tensor, "batch ..."]:
        """Give each row of the matrix its number, with soft_labels = "broadcast"."""
        return numbers[:, None] if self.section.soft_labels == "broadcast" else numbers

    def _soft_objective(self, labels: Float[Tensor, ...]) -> Objective:
        """Make the loss for a label per pair, or per entry of the matrix."""
        margins = soft_margin.soft_margins(labels, margin=self.section.margin, kind=self.section.soft_margin)
        by_anchor = soft_margin.own_margins if labels.ndim == 1 else soft_margin.row_margins
        return Objective(partial(soft_margin.soft_triplet, margins=by_anchor(margins)), self.section.mask_positives)
