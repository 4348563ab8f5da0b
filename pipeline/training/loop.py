"""The training loop of both rounds: the schedule, the pace, and what is noticed on the way."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Int32
from torch import nn

from aoq.pipeline.config.losses import LogitLoss, Loss, online_version
from aoq.pipeline.config.training import Training
from aoq.pipeline.data.batches import epoch_order, step_rng
from aoq.pipeline.losses import plateau
from aoq.pipeline.losses.pace import Pace
from aoq.pipeline.losses.temperature import LearntTemperature
from aoq.pipeline.training.collapse import CollapseDetector
from aoq.pipeline.training.guide import Guide
from aoq.pipeline.training.resumable import Resumable, State, Validate
from aoq.pipeline.training.sampler import Sampler
from aoq.pipeline.training.step import Objective, constrain, draw_batch, make_objective, read_batch, take_step

logger = logging.getLogger(__name__)

EVEN = 0.5
"""As many offline negatives are harder than the batch's hardest as are easier."""


@dataclass
class RoundState(State):
    hardness: list[float] = field(default_factory=list)
    """How hard online negatives are after each epoch, from 0 to 1."""
    learnt: list[dict[str, float]] = field(default_factory=list)
    """The loss's learnt numbers after each epoch."""


def epoch_loss(training: Training, epoch: int) -> Loss:
    """The warm-up loss of the first epochs, then the round's own.

    A warm-up keeps the online margin and the treatment of positives of the loss it stands in for.
    """
    if epoch >= len(training.warmup):
        return training.loss
    return online_version(training.loss, training.warmup[epoch])


def learnt_numbers(loss: Loss) -> LearntTemperature | None:
    """What the loss learns beside the model, where it begins; None of a loss whose numbers stay."""
    if not isinstance(loss, LogitLoss) or not loss.learn_temperature:
        return None
    return LearntTemperature(**loss.learnt)


@dataclass(kw_only=True, eq=False, repr=False)
class Trainer(Resumable):
    """One model in the epochs of a round."""

    sampler: Sampler | None
    guide: Guide | None = None
    """Leaves in-batch negatives out, where a table is drawn from."""
    state: RoundState = field(default_factory=RoundState)
    collapse: CollapseDetector = field(default_factory=CollapseDetector)

    def __post_init__(self) -> None:
        self.learnt = learnt_numbers(self.schedule.loss)
        if self.learnt is not None:
            self.learnt.to(self.run.device)
        super().__post_init__()
        self.pace = Pace(self.schedule.loss.online_margin) if self.schedule.is_paced else None
        if self.schedule.start_up is not None and self.pace is None:
            logger.info(
                "start_up has no part in a training with loss %r, which heeds all negatives, the harder the more",
                self.schedule.loss.name,
            )

    def learnt_besides(self) -> Iterable[nn.Parameter]:
        return () if self.learnt is None else self.learnt.parameters()

    def train(self, validate: Validate) -> dict[str, Any]:
        notes = super().train(validate)
        (notes["final_weights_sha256"],) = notes["final_weights_sha256"]
        if self.pace is not None:
            notes["hardness_by_epoch"] = self.state.hardness
        if self.learnt is not None:
            notes["learnt_by_epoch"] = self.state.learnt
        if harder := self.means_by_epoch("offline_harder_share"):
            notes["offline_harder_by_epoch"] = harder
            self._say_what_the_table_gave(harder[-1])
        if soft := self.means_by_epoch("offline_match_probability"):
            notes["offline_match_probability_by_epoch"] = soft
        return notes

    def _say_what_the_table_gave(self, harder: float) -> None:
        text = f"{harder:.0%} of the offline negatives were harder to this model than the hardest of their batch"
        if harder < EVEN:
            text += (
                ": the table is no harder for it than its batches. Draw harder ones ([sampling] hardness), or search "
                "anew with this model ([refresh])"
            )
        logger.info("in the last epoch, %s", text)

    def kept(self) -> dict[str, Any]:
        (model,), (optimizer,) = self.models, self.optimizers
        return {
            "collapse": vars(self.collapse),
            "pace": self.pace and vars(self.pace),
            "learnt": self.learnt and self.learnt.state_dict(),
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
        }

    def restore(self, kept: Mapping[str, Any]) -> None:
        self.models[0].load_state_dict(kept["model"])
        self.optimizers[0].load_state_dict(kept["optimizer"])
        self.collapse = CollapseDetector(**kept["collapse"])
        self.pace = kept["pace"] and Pace(**kept["pace"])
        if self.learnt is not None:
            self.learnt.load_state_dict(kept["learnt"])

    def train_epoch(self) -> None:
        state, training = self.state, self.schedule
        loss = epoch_loss(training, state.epoch)
        learnt = self.learnt if loss is training.loss else None  # a warm-up has numbers of its own
        objective = make_objective(loss, self.pace, learnt)
        if loss.needs_table and self.sampler is None:
            raise ValueError(f"loss {loss.name!r} draws from a negative table, and there is none")
        order = epoch_order(self.pairs.split.caption_count, seed=self.seed, epoch=state.epoch)
        for window in self.windows(0, self.steps, lambda: self._step(objective, order)):
            line = window.means()
            collapsed = self.collapse.observe(
                loss.name,
                line["retrieval_loss"],
                line["plateau"],
                gap=line["positive_gap"],
                steps=window.steps,
                can_pace=loss.takes_pace,
            )
            self.record(window, {"loss_name": loss.name, "collapsed": collapsed})
        if self.pace is not None:
            self._say_hardness(self.pace)
        if self.learnt is not None:
            self._say_learnt(self.learnt)

    def _say_hardness(self, pace: Pace) -> None:
        self.state.hardness.append(round(pace.share, 2))
        what = "the batch's hardest" if pace.share == 1 else f"of hardness {pace.share:.2f}"
        logger.info("epoch %d: online negatives are %s", self.state.epoch + 1, what)

    def _say_learnt(self, learnt: LearntTemperature) -> None:
        self.state.learnt.append(learnt.values())
        said = ", ".join(f"{name} {value:.4g}" for name, value in learnt.values().items())
        logger.info("epoch %d: learnt %s", self.state.epoch + 1, said)

    def _step(self, objective: Objective, order: Int32[np.ndarray, " captions"]) -> dict[str, float]:
        state, training = self.state, self.schedule
        captions = order[state.step * training.batch_size :][: training.batch_size]
        rng = step_rng(seed=self.seed, epoch=state.epoch, step=state.step)
        drawing_epoch = state.epoch - len(training.warmup)  # the warm-up draws nothing
        draw = draw_batch(self.pairs, self.sampler, objective, captions, rng, drawing_epoch)
        batch = read_batch(self.seen, draw).to(self.run.device)
        if training.constraints is not None:
            objective = replace(objective, besides=partial(constrain, constraints=training.constraints, rng=rng))
        if self.guide is not None:
            objective = replace(objective, guided=self.guide.matches(draw.groups[0]))
        figures = take_step(self.models[0], self.optimizers[0], batch, objective, training.gradient_clip)
        if self.pace is not None:
            figures["hardness"] = self.pace.share
        size = len(batch.image_rows)
        if objective.guided is not None:
            figures["guided_share"] = (int(objective.guided.sum()) - size) / max(1, size * (size - 1))
        if "plateau" not in figures:
            soft = None if draw.match_probability is None else torch.from_numpy(draw.match_probability)
            figures["plateau"] = plateau(objective.loss, size, soft)
        return {**figures, "collision_rate": draw.collision_rate}
