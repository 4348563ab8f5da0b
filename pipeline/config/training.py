"""The [first_round], [second_round] and [co_teaching] sections."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from aoq.pipeline.config.losses import Loss, OnlineLoss, WarmUp
from aoq.pipeline.config.section import Array, Margin, Section

StartUp = Literal["auto"]
Precision = Literal["float32", "tf32", "bfloat16"]
Augmentation = Literal["crop", "flip", "randaugment"]


class Constraint(Section):
    """The paper reports the best of weights 0.1 and 1 with margins 0, 0.1 and 0.2, not which, so none is a default."""

    weight: PositiveFloat
    margin: Margin


class Constraints(Section):
    """CCR and CCS (`aoq.pipeline.losses.contrastive_content`), in all epochs of the round, warm-up or not."""

    ccr: Constraint | None = None
    """What a fragment attends to is closer to it than the rest."""
    ccs: Constraint | None = None
    """What a fragment attends to is closer to it than to another fragment of its item."""

    @model_validator(mode="after")
    def _one_at_least(self) -> Constraints:
        if not self.names:
            raise ValueError(
                "no constraint is set; give `ccr`, `ccs` or both, such as ccr = {weight = 0.1, margin = 0.1}"
            )
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """Those that are set."""
        return tuple(name for name in ("ccr", "ccs") if getattr(self, name) is not None)


class Schedule(Section):
    """How long and how fast to train: whole epochs."""

    epochs: PositiveInt
    batch_size: Annotated[int, Field(ge=2)] = 128
    learning_rate: PositiveFloat = 2e-4
    decay_epochs: Array[PositiveInt] = ()
    """The learning rate is multiplied by `decay` after each of these epochs."""
    decay: Annotated[float, Field(gt=0.0, le=1.0)] = 0.1
    gradient_clip: PositiveFloat = 2.0
    weight_decay: PositiveFloat | None = None
    """Decoupled from the gradient (AdamW); by default Adam without any."""
    decay_biases: Literal[False] | None = None
    """`false`: biases and norms, which have one dimension, do not decay."""
    schedule: Literal["cosine"] | None = None
    """`cosine`: the learning rate falls to 0 along half a cosine, in place of `decay_epochs`."""
    warmup_steps: PositiveInt | None = None
    """The learning rate rises linearly over the first of all steps."""
    ema: Annotated[float, Field(gt=0.0, lt=1.0)] | None = None
    """The decay of an exponential moving average of the weights, which is evaluated and kept in their place."""
    freeze: Array[Literal["image", "text"]] | None = None
    """The towers whose pretrained weights stay as they are."""
    layer_decay: Annotated[float, Field(gt=0.0, lt=1.0)] | None = None
    """Each layer of a tower is trained at this share of the rate of the layer above it; the highest at `tower_rate`."""
    gradient_checkpointing: Literal[True] | None = None
    """Towers compute activations again in the backward pass, in place of keeping them: less memory, more time."""
    augment: Array[Augmentation] | None = None
    """What happens to photographs before an image tower sees them, anew in each epoch: a random crop of at least half
    of the image; a flip where no caption of it names a side; RandAugment with operations that keep colours."""
    tower_rate: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    """Of the learning rate, the share of a pretrained tower; by default a tenth (VSE∞)."""
    precision: Precision = "float32"
    """In what models encode and compare. It is no setting of the engine, since another gives other weights."""

    @model_validator(mode="after")
    def _options_are_used(self) -> Schedule:
        if self.schedule is not None and self.decay_epochs:
            raise ValueError('schedule = "cosine" stands in place of `decay_epochs`; leave one of them out')
        if self.decay_biases is False and self.weight_decay is None:
            raise ValueError("decay_biases = false says which weights decay, and none do; set `weight_decay` as well")
        return self


class Training(Schedule):
    """One round of training; an epoch is one visit of every caption, or with companions as anchors of a third of them,
    in as many steps."""

    loss: Loss
    warmup: Array[WarmUp] = ()
    """The loss of the first epochs, one name each, in place of `loss`; its margin is the online one."""
    start_up: StartUp | None = None
    """`auto`: online negatives are as hard as the model can bear (`aoq.pipeline.losses.pace`). By default they are
    the batch's hardest from the first step on, on which a training from scratch may collapse. Losses on logits, such
    as `infonce`, have no use for it."""
    constraints: Constraints | None = None
    """What is demanded of the model's attention besides ranking pairs."""
    chunk: PositiveInt | None = None
    """This many items are encoded and scored at a time, with the loss still on the whole batch: less memory, and a
    forward pass more (`aoq.pipeline.training.parts`). By default all at once."""

    @property
    def is_paced(self) -> bool:
        """Whether `start_up` is set, and the loss heeds it."""
        return self.start_up is not None and self.loss.takes_pace

    @model_validator(mode="after")
    def _loss_fits(self) -> Training:
        if len(self.warmup) >= self.epochs:
            raise ValueError(f"{len(self.warmup)} warm-up epochs leave none of {self.epochs} for {self.loss.name!r}")
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


class CoTeaching(Schedule):
    """Learning with Noisy Correspondence for Cross-modal Matching (Huang et al., NeurIPS 2021), of any model: two
    networks that tell each other which training pairs to trust.

    An epoch is one of both networks: of co-teaching, as many steps as the pairs selected as clean fill. `epochs` and
    `decay_epochs` are of co-teaching.
    """

    warmup_epochs: PositiveInt
    """Epochs of each network by itself on all pairs and all negatives, before those of co-teaching."""
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
    start_up: StartUp | None = None
    """`auto`: after the warm-up online negatives are as hard as the model can bear; by default the hardest."""
    rectify_from: NonNegativeInt | None = None
    """The epoch of co-teaching, from 0, from which pairs flagged as noisy train as well; by default half of
    them."""

    @property
    def first_rectified(self) -> int:
        return self.epochs // 2 if self.rectify_from is None else self.rectify_from


def plain_training(section: CoTeaching) -> SecondRound:
    """One network of the two by itself, on all pairs: their epochs and learning rates, with the online loss in place of
    co-teaching, and in the warm-up the sum over negatives where theirs is the mean (under one gradient clip)."""
    schedule = section.model_dump(include={*Schedule.model_fields}) | {
        "epochs": section.warmup_epochs + section.epochs,
        "decay_epochs": tuple(section.warmup_epochs + after for after in section.decay_epochs),
        "warmup": ("sum",) * section.warmup_epochs,
        "start_up": section.start_up,
    }
    online = OnlineLoss(name="online", margin=section.margin, mask_positives=section.mask_positives)
    return SecondRound(**schedule, loss=online)
