"""The training loop of both rounds: the schedule, the protected start-up, and what is noticed on the way."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Int32

from aoq.models.base import MatchingModel
from aoq.pipeline.config.losses import LossSection, online_version
from aoq.pipeline.config.training import Training
from aoq.pipeline.data.batches import PairData, epoch_order, step_rng, steps_per_epoch
from aoq.pipeline.losses import plateau
from aoq.pipeline.training.collapse import CollapseDetector
from aoq.pipeline.training.constraints import constrained
from aoq.pipeline.training.metrics import Window
from aoq.pipeline.training.resumable import Resumable, Run, State, Validate
from aoq.pipeline.training.sampler import Sampler
from aoq.pipeline.training.schedule import epoch_loss, learning_rate
from aoq.pipeline.training.step import Objective, draw_batch, make_objective, read_batch, take_step

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


def train(
    model: MatchingModel,
    description: Mapping[str, Any],
    pairs: PairData,
    sampler: Sampler | None,
    training: Training,
    validate: Validate,
    *,
    seed: int,
    run: Run,
) -> dict[str, Any]:
    """Train `model` in place, write `model.safetensors` (best dev rsum) and `metrics.jsonl` into `run.work`.

    Returns what the manifest should say. A killed run continues from its last checkpoint to the same weights.
    """
    trainer = _Round(model, description, pairs, sampler, training, seed, run)
    notes = trainer.train(validate)
    (notes["final_weights_sha256"],) = notes["final_weights_sha256"]
    if training.start_up is None:
        return notes
    protected = trainer.state.protected_epochs
    if protected + len(training.warmup) >= training.epochs:
        logger.warning(
            "the protected start-up lasted %d of %d epochs, and nothing was trained on %s; give it more epochs, a "
            "larger learning rate, or a smaller batch, whose hardest negatives are easier",
            protected,
            training.epochs,
            training.loss.name,
        )
    return {**notes, "protected_epochs": protected}


class _Round(Resumable):
    """One model in the epochs of a round."""

    state: RoundState

    def __init__(
        self,
        model: MatchingModel,
        description: Mapping[str, Any],
        pairs: PairData,
        sampler: Sampler | None,
        training: Training,
        seed: int,
        run: Run,
    ) -> None:
        super().__init__([model], description, training.epochs, training.learning_rate, run)
        self._pairs, self._sampler, self._training, self._seed = pairs, sampler, training, seed
        self._parameters = list(model.parameters())
        self._collapse = CollapseDetector()
        self._steps = steps_per_epoch(pairs.split.caption_count, training.batch_size)
        self.state = RoundState(ready=training.start_up is None)

    @property
    def taken(self) -> int:
        return self.state.epoch * self._steps + self.state.step

    def kept(self) -> dict[str, Any]:
        (model,), (optimizer,) = self.models, self.optimizers
        return {"collapse": vars(self._collapse), "model": model.state_dict(), "optimizer": optimizer.state_dict()}

    def restore(self, kept: Mapping[str, Any]) -> None:
        self.models[0].load_state_dict(kept["model"])
        self.optimizers[0].load_state_dict(kept["optimizer"])
        self._collapse = CollapseDetector(**kept["collapse"])

    def train_epoch(self) -> None:
        state, training = self.state, self._training
        loss = epoch_loss(training, state.epoch - state.protected_epochs if state.ready else None)
        objective = make_objective(loss)
        if loss.draws_offline and self._sampler is None:
            raise ValueError(f"loss {loss.name!r} draws from a negative table, and there is none")
        order, size = (
            epoch_order(self._pairs.split.caption_count, seed=self._seed, epoch=state.epoch),
            training.batch_size,
        )
        self.models[0].train()
        self.begin_epoch(0, learning_rate(training, state.epoch))
        self.take_steps(
            self._steps,
            lambda: self._step(objective, order[state.step * size :][:size]),
            lambda window: self._record(loss, window),
        )
        if not state.ready:
            self._end_protected_epoch()

    def _end_protected_epoch(self) -> None:
        state, margin = self.state, online_version(self._training.loss).margin
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

    def _step(self, objective: Objective, captions: Int32[np.ndarray, " batch"]) -> dict[str, float]:
        state, training = self.state, self._training
        rng = step_rng(seed=self._seed, epoch=state.epoch, step=state.step)
        before = state.protected_epochs + len(training.warmup)  # epochs that draw nothing
        drawn = draw_batch(self._pairs, self._sampler, objective, captions, rng, state.epoch - before)
        batch = read_batch(self._pairs, drawn).to(self.run.device)
        objective = constrained(objective, training.constraints, rng)
        (model,), (optimizer,) = self.models, self.optimizers
        figures = take_step(model, optimizer, self._parameters, batch, objective, training.gradient_clip)
        size = len(batch.image_rows)
        if not state.ready and size == min(training.batch_size, self._pairs.split.caption_count):
            state.hardest = [*state.hardest, figures["hardest"]][-LAST_STEPS:]
        return {**figures, "collision_rate": drawn.collision_rate, "plateau": plateau(objective.loss, size)}

    def _record(self, loss: LossSection, window: Window) -> None:
        """One line of figures; not finite is an error, and a plateau is noticed."""
        line, epoch = window.means(), self.state.epoch
        self.check_finite(line["loss"])
        collapsed = self._collapse.observe(
            loss.name, line["retrieval_loss"], line["plateau"], gap=line["positive_gap"], steps=window.steps
        )
        about = {"loss_name": loss.name, "collapsed": collapsed}
        self.append_window(window, about, learning_rate(self._training, epoch))
        text = f"epoch {epoch + 1}/{self.epochs} {loss.name} loss {line['loss']:.2f}"
        self.run.progress(self.taken, self.epochs * self._steps, text)
