"""Draw and read the batch of each step of a round, in any order and process."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from aoq.models.packing import sent
from aoq.pipeline.batches.order import KeptOrder
from aoq.pipeline.config.losses import Loss, online_version
from aoq.pipeline.config.training import Training
from aoq.pipeline.data.batches import PairData, epoch_order, step_rng
from aoq.pipeline.training.guide import Guide
from aoq.pipeline.training.parts import WHOLE, Cut
from aoq.pipeline.training.sampler import Sampler
from aoq.pipeline.training.step import Batch, draw_batch, make_objective, read_batch


def epoch_loss(training: Training, epoch: int) -> Loss:
    """Return the warm-up loss of the first epochs, then the round's own.

    A warm-up keeps the online margin and the treatment of positives of the loss it stands in for.
    """
    if epoch >= len(training.warmup):
        return training.loss
    return online_version(training.loss, training.warmup[epoch])


@dataclass(frozen=True)
class Drawn:
    """A batch with the state and masks that its step needs."""

    batch: Batch
    rng: np.random.Generator
    """State after drawing; the step's further random numbers continue from it."""
    figures: dict[str, float]
    guided: Bool[Tensor, "batch batch"] | None = None
    """Pairs that the guide does not accept as negatives."""

    def to(self, device: torch.device) -> Drawn:
        guided = None if self.guided is None else sent(self.guided, device)
        return replace(self, batch=self.batch.to(device), guided=guided)

    def pin_memory(self) -> Drawn:
        guided = None if self.guided is None else self.guided.pin_memory()
        return replace(self, batch=self.batch.pin_memory(), guided=guided)


@dataclass(frozen=True)
class BatchMaker:
    """The batch of any step, a pure function of (seed, epoch, step).

    In pinned memory where it goes to a GPU, so that no step waits for a copy.
    """

    pairs: PairData
    sampler: Sampler | None
    guide: Guide | None
    training: Training
    seed: int
    cut: Cut = WHOLE
    """Division of a batch among processes, each of which reads its own part."""
    is_pinned: bool = False
    orders: KeptOrder | None = None
    """Order of the captions in an epoch that draws, counted from the first of these; random by default."""

    def __call__(self, epoch: int, step: int) -> Drawn:
        size = self.training.batch_size
        rng = step_rng(seed=self.seed, epoch=epoch, step=step)
        objective = make_objective(epoch_loss(self.training, epoch))
        drawing_epoch = epoch - len(self.training.warmup)  # the warm-up draws nothing
        if self.orders is not None and drawing_epoch >= 0:
            order = self.orders(drawing_epoch)
        else:
            order = epoch_order(self.pairs.split.caption_count, seed=self.seed, epoch=epoch)
        draw = draw_batch(self.pairs, self.sampler, objective, order[step * size :][:size], rng, drawing_epoch)
        figures = {"collision_rate": draw.collision_rate}
        guided = None if self.guide is None else self.guide.matches(draw.groups[0])
        if guided is not None:
            figures = {"guided_share": off_diagonal_share(guided), **figures}
        pairs = len(draw.groups[0].images)
        own = self.cut.for_batch(pairs).processes.rows(pairs)
        seen = self.pairs.augmented(self.training.augment, self.seed, epoch)
        drawn = Drawn(read_batch(seen, draw, own), rng, figures, guided)
        return drawn.pin_memory() if self.is_pinned else drawn


def off_diagonal_share(chosen: Bool[Tensor, "batch batch"]) -> float:
    """Return the fraction chosen off the diagonal, in a matrix whose diagonal is chosen.

    >>> off_diagonal_share(torch.tensor([[True, True], [False, True]]))
    0.5
    """
    size = len(chosen)
    return (int(chosen.sum()) - size) / max(1, size * (size - 1))
