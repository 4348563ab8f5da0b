"""The training loop of both rounds: the schedule, the protected start-up, and what is noticed on the way."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Int32

from aoq.pipeline.config.losses import Loss, online_version
from aoq.pipeline.config.training import Training
from aoq.pipeline.data.batches import epoch_order, step_rng
from aoq.pipeline.losses import plateau
from aoq.pipeline.training.collapse import CollapseDetector
from aoq.pipeline.training.resumable import Resumable, State, Validate
from aoq.pipeline.training.sampler import Sampler
from aoq.pipeline.training.step import Objective, constrain, draw_batch, make_objective, read_batch, take_step

logger = logging.getLogger(__name__)

READY = 1.0
"""The protected start-up ends after the epoch in whose last steps the hardest negatives cost less, in margins: from
there, a collapse is uphill."""
LAST_STEPS = 50
"""The count of these steps; of whole batches, for a small one has easier negatives."""


@dataclass
class RoundState(State):
    protected_epochs: int = 0
    """Epochs that the protected start-up took."""
    ready: bool = True
    """True once the start-up is over."""
    hardest: list[float] = field(default_factory=list)
    """In the start-up: what the batch's hardest negatives cost in this epoch's last steps."""


def epoch_loss(training: Training, epoch: int | None) -> Loss:
    """The warm-up loss of the first epochs, then the round's own; every negative in a protected start-up (None).

    A warm-up keeps the online margin and the treatment of positives of the loss it stands in for.
    """
    if epoch is not None and epoch >= len(training.warmup):
        return training.loss
    return online_version(training.loss, "sum" if epoch is None else training.warmup[epoch])


@dataclass(kw_only=True, eq=False, repr=False)
class Trainer(Resumable):
    """One model in the epochs of a round."""

    sampler: Sampler | None
    state: RoundState = field(default_factory=RoundState)
    collapse: CollapseDetector = field(default_factory=CollapseDetector)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.state.ready = self.schedule.start_up is None

    def train(self, validate: Validate) -> dict[str, Any]:
        notes, training = super().train(validate), self.schedule
        (notes["final_weights_sha256"],) = notes["final_weights_sha256"]
        if training.start_up is None:
            return notes
        protected = self.state.protected_epochs
        if protected + len(training.warmup) >= training.epochs:
            logger.warning(
                "the protected start-up lasted %d of %d epochs, and nothing was trained on %s; give it more epochs, a "
                "larger learning rate, or a smaller batch, whose hardest negatives are easier",
                protected,
                training.epochs,
                training.loss.name,
            )
        return {**notes, "protected_epochs": protected}

    def kept(self) -> dict[str, Any]:
        (model,), (optimizer,) = self.models, self.optimizers
        return {"collapse": vars(self.collapse), "model": model.state_dict(), "optimizer": optimizer.state_dict()}

    def restore(self, kept: Mapping[str, Any]) -> None:
        self.models[0].load_state_dict(kept["model"])
        self.optimizers[0].load_state_dict(kept["optimizer"])
        self.collapse = CollapseDetector(**kept["collapse"])

    def train_epoch(self) -> None:
        state, training = self.state, self.schedule
        loss = epoch_loss(training, state.epoch - state.protected_epochs if state.ready else None)
        objective = make_objective(loss)
        if loss.draws_offline and self.sampler is None:
            raise ValueError(f"loss {loss.name!r} draws from a negative table, and there is none")
        order = epoch_order(self.pairs.split.caption_count, seed=self.seed, epoch=state.epoch)
        for window in self.windows(0, self.steps, lambda: self._step(objective, order)):
            line = window.means()
            collapsed = self.collapse.observe(
                loss.name, line["retrieval_loss"], line["plateau"], gap=line["positive_gap"], steps=window.steps
            )
            self.record(window, {"loss_name": loss.name, "collapsed": collapsed})
        if not state.ready:
            self._end_protected_epoch()

    def _end_protected_epoch(self) -> None:
        state, margin = self.state, online_version(self.schedule.loss).margin
        hardest, state.hardest = float(np.mean(state.hardest)), []
        state.protected_epochs += 1
        state.ready = hardest < READY * margin
        logger.info(
            "start-up, epoch %d: a batch's hardest negatives cost %.3f, and %.3f in a collapsed model; %s",
            state.epoch + 1,
            hardest,
            margin,
            "the schedule begins" if state.ready else "on every negative until they cost less",
        )

    def _step(self, objective: Objective, order: Int32[np.ndarray, " captions"]) -> dict[str, float]:
        state, training = self.state, self.schedule
        captions = order[state.step * training.batch_size :][: training.batch_size]
        rng = step_rng(seed=self.seed, epoch=state.epoch, step=state.step)
        before = state.protected_epochs + len(training.warmup)  # epochs that draw nothing
        draw = draw_batch(self.pairs, self.sampler, objective, captions, rng, state.epoch - before)
        batch = read_batch(self.pairs, draw).to(self.run.device)
        if training.constraints is not None:
            objective = replace(objective, besides=partial(constrain, constraints=training.constraints, rng=rng))
        figures = take_step(self.models[0], self.optimizers[0], batch, objective, training.gradient_clip)
        size = len(batch.image_rows)
        if not state.ready and size == min(training.batch_size, len(order)):
            state.hardest = [*state.hardest, figures["hardest"]][-LAST_STEPS:]
        return {**figures, "collision_rate": draw.collision_rate, "plateau": plateau(objective.loss, size)}
