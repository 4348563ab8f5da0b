"""The [co_teaching] section: NCR, two networks that tell each other which training pairs to trust."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from aoq.pipeline.config.losses import Online
from aoq.pipeline.config.section import Section
from aoq.pipeline.config.training import SecondRound


class CoTeaching(Section):
    """Learning with Noisy Correspondence for Cross-modal Matching (Huang et al., NeurIPS 2021), of any model.

    An epoch is one of both networks: of co-teaching, as many steps as the pairs selected as clean fill.
    """

    warmup_epochs: PositiveInt
    """Epochs of each network by itself on all pairs and all negatives, before those of co-teaching."""
    epochs: PositiveInt
    """Epochs of co-teaching."""
    batch_size: Annotated[int, Field(ge=2)] = 128
    learning_rate: PositiveFloat = 2e-4
    decay_epochs: Annotated[tuple[PositiveInt, ...], Field(strict=False)] = ()
    """The learning rate is multiplied by `decay` after each of these epochs of co-teaching."""
    decay: Annotated[float, Field(gt=0.0, le=1.0)] = 0.1
    gradient_clip: PositiveFloat = 2.0
    margin: Annotated[float, Field(gt=0.0, le=2.0)] = 0.2
    mask_positives: bool = True
    threshold: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.5
    """Pairs that are right with a higher probability are selected as clean."""
    soft_margin: Literal["exponential", "linear", "sin"] = "exponential"
    """How a pair's margin grows with its label."""
    soft_labels: Literal["pair", "broadcast"] = "pair"
    """`pair`: each has one label, and its margin in both directions (paper). `broadcast`: as in the released code, the
    label of entry (i, j) mixes pair i's probability with what is predicted of pair j, and captions as anchors have the
    margins of the images' rows."""
    rectify_from: NonNegativeInt | None = None
    """The epoch of co-teaching, from 0, from which pairs flagged as noisy train as well; by default half of
    them."""

    @property
    def first_rectified(self) -> int:
        return self.epochs // 2 if self.rectify_from is None else self.rectify_from


def plain_training(section: CoTeaching) -> SecondRound:
    """One network of the two by itself, on all pairs: their epochs and learning rates, with the online loss in place of
    co-teaching, and in the warm-up the sum over negatives where theirs is the mean (under one gradient clip)."""
    return SecondRound(
        loss=Online(name="online", margin=section.margin, mask_positives=section.mask_positives),
        epochs=section.warmup_epochs + section.epochs,
        batch_size=section.batch_size,
        learning_rate=section.learning_rate,
        decay_epochs=tuple(section.warmup_epochs + after for after in section.decay_epochs),
        decay=section.decay,
        gradient_clip=section.gradient_clip,
        warmup=("sum",) * section.warmup_epochs,
    )
