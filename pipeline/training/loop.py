"""The training loop of both rounds: the schedule, the pace, and warnings."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from torch import Tensor, nn

from aoq.pipeline.batches.order import KeptOrder
from aoq.pipeline.config.losses import LogitLoss, Loss
from aoq.pipeline.losses import collapsed_cost
from aoq.pipeline.losses.pace import Pace
from aoq.pipeline.losses.temperature import LearntTemperature
from aoq.pipeline.training.batch_maker import BatchMaker, Drawn, epoch_loss
from aoq.pipeline.training.collapse import CollapseDetector
from aoq.pipeline.training.guide import Guide
from aoq.pipeline.training.parts import Cut
from aoq.pipeline.training.resumable import Resumable, Validate
from aoq.pipeline.training.run import State
from aoq.pipeline.training.sampler import Sampler
from aoq.pipeline.training.step import Objective, PairDraws, constrain, make_objective, take_step
from aoq.pipeline.training.window import Figure

logger = logging.getLogger(__name__)


@dataclass
class RoundState(State):
    hardness: list[float] = field(default_factory=list)
    """Hardness of online negatives after each epoch, from 0 to 1."""
    learnt: list[dict[str, float]] = field(default_factory=list)
    """The loss's learnt numbers after each epoch."""


def learnt_numbers(loss: Loss) -> LearntTemperature | None:
    """Initial values of the numbers a loss learns besides the model; None if it learns none."""
    if not isinstance(loss, LogitLoss) or not loss.learn_temperature:
        return None
    return LearntTemperature(**loss.learnt)


@dataclass(kw_only=True, eq=False, repr=False)
class Trainer(Resumable):
    """One model in the epochs of a round."""

    sampler: Sampler | None
    orders: KeptOrder | None = None
    """Order of the captions in an epoch that draws; random by default."""
    guide: Guide | None = None
    """Leaves in-batch negatives out in every epoch, a warm-up's too."""
    state: RoundState = field(default_factory=RoundState)
    collapse: CollapseDetector = field(default_factory=CollapseDetector)

    def __post_init__(self) -> None:
        self.cut = Cut(self.schedule.chunk, self.run.processes)
        self.cut.check(self.models[0], gradient_checkpointing=bool(self.schedule.gradient_checkpointing))
        self.learnt = learnt_numbers(self.schedule.loss)
        if self.learnt is not None:
            self.learnt.to(self.run.device)
        super().__post_init__()
        self.pace = Pace(self.schedule.loss.online_margin) if self.schedule.is_paced else None
        if self.schedule.start_up is not None and self.pace is None:
            logger.info(
                "start_up has no part in a training with loss %r, which takes no hardest negatives of the batch",
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
        if soft := self.means_by_epoch("offline_match_probability"):
            notes["offline_match_probability_by_epoch"] = soft
        return notes

    def kept(self) -> dict[str, Any]:
        (model,), (optimizer,) = self.models, self.optimizers
        return {
            "collapse": vars(self.collapse),
            "pace": self.pace and self.pace.kept(),
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
        is_own = self.learnt is not None and loss is training.loss  # a warm-up has numbers of its own
        objective = make_objective(loss, self.pace, self._loss_numbers if is_own else None)
        if loss.needs_table and self.sampler is None:
            raise ValueError(f"loss {loss.name!r} draws from a negative table, and there is none")
        is_pinned = self.run.device.type == "cuda"
        make = BatchMaker(self.pairs, self.sampler, self.guide, training, self.seed, self.cut, is_pinned, self.orders)
        steps = self.windows(0, self.steps, partial(make, state.epoch), partial(self._step, objective))
        with closing(steps) as windows:
            for window in windows:
                line = window.means()
                collapsed = self.collapse.observe(
                    loss.name,
                    line["retrieval_loss"],
                    line["plateau"],
                    gap=line["positive_gap"],
                    steps=window.steps,
                    can_pace=loss.takes_pace and self.pace is None,
                )
                self.record(window, {"loss_name": loss.name, "collapsed": collapsed})
        if self.pace is not None:
            self._say_hardness(self.pace, loss)
        if self.learnt is not None:
            self._say_learnt(self.learnt)

    def _say_hardness(self, pace: Pace, loss: Loss) -> None:
        self.state.hardness.append(round(pace.share, 2))
        if not loss.takes_pace:  # a warm-up on all negatives
            return
        logger.info("epoch %d: online negatives are %s", self.state.epoch + 1, pace)

    def _say_learnt(self, learnt: LearntTemperature) -> None:
        self.state.learnt.append(learnt.values())
        said = ", ".join(f"{name} {value:.4g}" for name, value in learnt.values().items())
        logger.info("epoch %d: learnt %s", self.state.epoch + 1, said)

    def _loss_numbers(self) -> dict[str, Tensor]:
        """Learnt numbers of the loss. All processes compute it alike, so only the leader's gradient counts."""
        assert self.learnt is not None
        found: dict[str, Tensor] = self.learnt()
        return found if self.run.processes.leads else {name: number.detach() for name, number in found.items()}

    def _step(self, objective: Objective, drawn: Drawn) -> Mapping[str, Figure]:
        drawn, size = drawn.to(self.run.device), len(drawn.batch.image_rows)
        processes = self.cut.for_batch(size).processes
        self.run.processes.seed(self.seed, self.state.epoch, self.state.step, processes.rank)
        if self.schedule.constraints is not None:
            draws = PairDraws(drawn.rng, size)
            besides = partial(constrain, constraints=self.schedule.constraints, draws=draws)
            objective = replace(objective, besides=besides)
        objective, batch = replace(objective, guided=drawn.guided), drawn.batch
        figures: dict[str, Figure] = {}
        clip = self.schedule.gradient_clip
        figures |= take_step(self.computing[0], self.optimizers[0], batch, objective, clip, self.cut)
        if self.pace is not None:
            figures["hardness"] = self.pace.figure
        if "plateau" not in figures:
            figures["plateau"] = collapsed_cost(objective.loss, size, batch.match_probability, self.run.device)
        return figures | drawn.figures
