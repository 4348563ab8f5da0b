"""The [first_round] and [second_round] sections."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from aoq.pipeline.config.constraints import Constraints
from aoq.pipeline.config.losses import Loss, WarmUp
from aoq.pipeline.config.section import Section, list_of


class Training(Section):
    """One round of training; the schedule counts whole epochs: one visit of every caption, or with companions
    as anchors of a third of them, in as many steps."""

    loss: Loss
    epochs: PositiveInt
    batch_size: Annotated[int, Field(ge=2)] = 128
    learning_rate: PositiveFloat = 2e-4
    decay_epochs: list_of(PositiveInt) = ()  # type: ignore[valid-type]
    """The learning rate is multiplied by `decay` after each of these epochs."""
    decay: Annotated[float, Field(gt=0.0, le=1.0)] = 0.1
    gradient_clip: PositiveFloat = 2.0
    warmup: list_of(WarmUp) = ()  # type: ignore[valid-type]
    """The loss of the first epochs, one name each, in place of `loss`; its margin is the online one."""
    start_up: Literal["protected"] | None = None
    """Before all else epochs on every negative (`sum`), until the batch's hardest cost less than they cost a
    collapsed model: until then, training on them would end on the collapse plateau."""
    constraints: Constraints | None = None
    """What is demanded of the model's attention besides."""

    @model_validator(mode="after")
    def _warmup_fits(self) -> Training:
        before = len(self.warmup) + (self.start_up is not None)
        if before >= self.epochs:
            what = "warm-up" if self.start_up is None else "start-up and warm-up"
            raise ValueError(f"{before} {what} epochs leave none of {self.epochs} for {self.loss.name!r}")
        return self

    @model_validator(mode="after")
    def _two_triples_fit(self) -> Training:
        if self.loss.makes_triples and self.batch_size < 6:
            raise ValueError(
                f'companions = "anchors" makes triples, and batch_size = {self.batch_size} has no two of them, so no '
                "online negative; give at least 6"
            )
        return self


class SecondRound(Training):
    start: Literal["teacher", "control"] | None = None
    """Fine-tuning, in place of fresh weights: the weights of the first round that the table comes from, or those of
    the student's own control. The control itself always starts afresh; `warmup` and `start_up` are then its alone."""

    @model_validator(mode="after")
    def _start_is_used(self) -> SecondRound:
        if self.start is not None and not self.loss.draws_offline:
            raise ValueError(f"`start` belongs to a loss on offline negatives; with {self.loss.name!r} leave it out")
        return self
