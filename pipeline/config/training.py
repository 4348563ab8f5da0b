"""The [first_round], [second_round] and [co_teaching] sections."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, NonNegativeInt, PositiveFloat, PositiveInt, Tag, field_validator

from aoq.pipeline.config.losses import Loss, OnlineLoss, WarmUp, control_version
from aoq.pipeline.config.section import MarginRange, Section, TomlArray

StartUp = Literal["auto"]
Precision = Literal["float32", "tf32", "bfloat16"]
Augmentation = Literal["crop", "flip", "randaugment"]


class Constraint(Section):
    """One constraint. No defaults: the paper does not name the best of weights 0.1, 1 and margins 0, 0.1, 0.2."""

    weight: PositiveFloat
    """Weight relative to the loss."""
    margin: MarginRange
    """Margin by which the attended content should be closer."""


class Constraints(Section):
    """CCR and CCS (`aoq.pipeline.losses.contrastive_content`), in all epochs of the round, warm-up or not."""

    ccr: Constraint | None = None
    """Pull a fragment's attended content closer to it than the rest."""
    ccs: Constraint | None = None
    """Pull a fragment's attended content closer to it than to another fragment of its item."""

    def problems(self) -> Iterator[str]:
        if not self.names:
            yield "no constraint is set; give `ccr`, `ccs` or both, such as ccr = {weight = 0.1, margin = 0.1}"

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.set_among(("ccr", "ccs")))


class LoRA(Section):
    """Low-rank adapters, trained instead of the towers' weights."""

    rank: PositiveInt
    """Rank of the update to each linear layer's weights."""
    alpha: PositiveFloat | None = None
    """The update is scaled by alpha / rank; by default by 1."""


class TeacherVectors(Section):
    """Vectors from another program, in the order of the training split; their cosines are the scores."""

    images: str
    """File of the images' vectors, relative to the data root; FILE::NAME for one array or column of several."""
    captions: str
    """File of the captions' vectors, likewise."""
    image_ids: str | None = None
    """File of ids of the images' vectors, matched with the split's; by default vectors have the split's order."""

    @property
    def parts(self) -> dict[str, tuple[str, str]]:
        """Path and part of each named file."""
        return {name: (file.partition("::")[0], file.partition("::")[2]) for name, file in self if file is not None}


Teacher = Annotated[
    Annotated[str, Tag("experiment")] | Annotated[TeacherVectors, Tag("files")],
    Discriminator(lambda teacher: "experiment" if isinstance(teacher, str) else "files"),
]


class Distillation(Section):
    """Learning from a teacher's scores, besides the loss and in all epochs (`aoq.pipeline.losses.distillation`)."""

    kind: Literal["batch", "lists", "both"] = "batch"
    """`batch`: the teachers' scores of all pairs of the batch. `lists`: the table's scores of `negatives` drawn from
    each list, with the pair's own score; the table may come from a teacher that attends."""
    teachers: TomlArray[Teacher] = ()
    """Experiments, each with an optional override after `@`, or files of vectors. An experiment scores by the
    embeddings of its first round or encoder; without these, by its student's embeddings; without any, by a forward pass
    of its student. By default the embeddings from which the table was mined."""
    weight: PositiveFloat = 0.3
    """Weight relative to the loss; both are sums over anchors."""
    temperature: PositiveFloat = 0.05
    """Temperature of the teachers' scores."""
    student_temperature: PositiveFloat | None = None
    """Temperature of the student's scores; by default the teachers'."""
    average: Literal["scores", "softmax"] = "scores"
    """Quantity averaged over several teachers."""
    positives: Literal["teacher", "one"] = "teacher"
    """Score of a true pair in the batch: the teachers', or 1, the highest cosine."""
    negatives: PositiveInt = 4
    """Negatives of `lists` per anchor; each adds an image and a caption to encode."""
    list_loss: Literal["kl", "margin_mse", "ranking"] = "kl"
    """Loss on `lists`."""

    @property
    def scores_batch(self) -> bool:
        return self.kind != "lists"

    @property
    def files(self) -> list[TeacherVectors]:
        return [teacher for teacher in self.teachers if not isinstance(teacher, str)]

    @property
    def teacher_names(self) -> list[str]:
        return [teacher if isinstance(teacher, str) else teacher.images for teacher in self.teachers]

    @property
    def listed(self) -> int:
        """Number of negatives drawn for `lists`."""
        return 0 if self.kind == "batch" else self.negatives

    def problems(self) -> Iterator[str]:
        idle = {"batch": ("negatives", "list_loss"), "lists": ("teachers", "average", "positives"), "both": ()}
        changed = self.model_dump(exclude_defaults=True)
        if unused := [name for name in idle[self.kind] if name in changed]:
            yield f'kind = "{self.kind}" does not use {unused}; leave them out, or choose "both"'
        has_temperature = {"temperature", "student_temperature"} & self.model_fields_set
        if self.kind == "lists" and self.list_loss == "margin_mse" and has_temperature:
            yield 'list_loss = "margin_mse" has no temperature; leave `temperature` and `student_temperature` out'
        if self.listed == 1 and self.list_loss == "ranking":
            yield 'list_loss = "ranking" orders an anchor\'s negatives; set `negatives` to at least 2'
        if len(set(map(str, self.teachers))) < len(self.teachers):
            yield "a teacher appears twice; name each once"


class Schedule(Section):
    """Epochs, batches, learning rates and regularisation of a training."""

    epochs: PositiveInt
    """Epochs to train; the best on dev is kept."""
    batch_size: Annotated[int, Field(ge=2)] = 128
    """True pairs in a batch."""
    learning_rate: PositiveFloat = 2e-4
    """Initial learning rate of Adam."""
    decay_epochs: TomlArray[PositiveInt] = ()
    """Epochs after which the learning rate is multiplied by `decay`."""
    decay: Annotated[float, Field(gt=0.0, le=1.0)] = 0.1
    """Factor of the learning rate at each of `decay_epochs`."""
    gradient_clip: PositiveFloat = 2.0
    """Largest norm of the gradient of all weights."""
    weight_decay: PositiveFloat | None = None
    """Weight decay decoupled from the gradient (AdamW); by default Adam without decay."""
    decay_biases: Literal[False] | None = None
    """`false`: parameters of one dimension, biases and norms, do not decay."""
    schedule: Literal["cosine"] | None = None
    """`cosine`: the learning rate falls to 0 along half a cosine, instead of `decay_epochs`."""
    warmup_steps: PositiveInt | None = None
    """Steps over which the learning rate first rises linearly."""
    ema: Annotated[float, Field(gt=0.0, lt=1.0)] | None = None
    """Decay of an exponential moving average of the weights, evaluated and saved instead of them."""
    freeze: TomlArray[Literal["image", "text"]] | None = None
    """Towers whose pretrained weights stay fixed."""
    train_layers: PositiveInt | None = None
    """Number of highest layers that each tower trains; its lower layers and embeddings stay fixed."""
    layer_decay: Annotated[float, Field(gt=0.0, lt=1.0)] | None = None
    """Ratio of a tower layer's learning rate to that of the layer above; the highest layer has `tower_rate`."""
    gradient_checkpointing: Literal[True] | None = None
    """Recompute towers' activations in the backward pass instead of keeping them: less memory, more time."""
    lora: LoRA | None = None
    """Train low-rank adapters of towers that are not frozen, at `tower_rate` (by default the whole learning rate); the
    published weights include them."""
    augment: TomlArray[Augmentation] | None = None
    """Random changes of photographs for an image tower, drawn anew in each epoch: a crop of at least half of the image;
    a flip unless a caption names a side; RandAugment with operations that keep colours."""
    tower_rate: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    """Ratio of a pretrained tower's learning rate to the others'; by default a tenth (VSE∞)."""
    precision: Precision = "float32"
    """Precision of encoding and comparing; not an engine setting, since it changes the weights."""

    def problems(self) -> Iterator[str]:
        if self.schedule is not None and self.decay_epochs:
            yield 'schedule = "cosine" replaces `decay_epochs`; leave one of them out'
        if self.decay_biases is False and self.weight_decay is None:
            yield "decay_biases = false needs a decay; set `weight_decay` as well"
        if self.train_layers is not None and self.lora is not None:
            yield "lora trains adapters in all layers, and none of the towers' own weights; leave `train_layers` out"


class Training(Schedule):
    """One round of training. An epoch visits every caption once; with companions as anchors, a third in equal steps.
    With `epoch_steps` it goes on where the last epoch ended; after the warm-up the captions are ordered anew."""

    loss: Loss
    warmup: TomlArray[WarmUp] = ()
    """Losses of the first epochs, one name per epoch, instead of `loss`; with the online margin."""
    start_up: StartUp | None = None
    """`auto`: self-paced hardness of online negatives; by default they are the batch's hardest from the first step on,
    which may collapse a training from scratch. Losses on logits, `sum` and `onlyoffline` do not use it."""
    constraints: Constraints | None = None
    """Constraints on the model's attention."""
    epoch_steps: PositiveInt | None = None
    """Steps of an epoch; the training is evaluated after each epoch. By default those of one pass over the captions."""
    keep: Literal["last"] | None = None
    """`last`: publish the last epoch's weights instead of the best epoch's on dev."""
    distillation: Distillation | None = None
    """Learning from a teacher's scores; an override removes the section with `distillation=false`."""
    chunk: PositiveInt | None = None
    """Encode and score this many items at a time, with the loss still on the whole batch: less memory, one more forward
    pass (`aoq.pipeline.training.chunks`). By default all at once."""

    @field_validator("distillation", mode="before")
    @classmethod
    def _without_distillation(cls, section: Any) -> Any:
        return None if section is False else section

    @property
    def is_paced(self) -> bool:
        """Return whether `start_up` is set and a loss of the round uses it."""
        return self.start_up is not None and (self.loss.takes_pace or "online" in self.warmup)

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if len(self.warmup) >= self.epochs:
            yield f"{len(self.warmup)} warm-up epochs leave none of {self.epochs} for {self.loss.name!r}"
        if self.loss.makes_triples and self.batch_size < 6:
            few = f"batch_size = {self.batch_size} has no two of them, so no online negative"
            yield f'companions = "anchors" makes triples, but {few}; give at least 6'
        if self.is_paced and self.loss.online_margin == 0:
            margin = f"the margin of online negatives, and that of {self.loss.name!r} is 0"
            yield f'start_up = "auto" measures hardness by {margin}; give it one, or leave start_up out'


class SecondRoundSection(Training):
    """The student's training, on the table."""

    start: Literal["teacher", "control"] | None = None
    """Fine-tuning instead of fresh weights: start from the first round that mined the table, or from the student's own
    control; numbers that a loss learnt there, such as its temperature, continue. The control starts afresh unless
    `control` is set; `warmup` and `start_up` are for fresh weights."""
    control: Literal["steps", "items"] | Annotated[float, Field(ge=1.0, le=100.0)] | None = None
    """What the control shares with the student: by default its pairs and steps. `items`: it encodes as many images and
    captions, in larger batches and about as many steps. A number: that many times the steps, such as the time ratio
    in the verdict, for equal time. If set, it continues from the teacher where the student does."""

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if self.start == "control" and not self.loss.draws_offline:
            yield f'start = "control" needs a loss on offline negatives; with {self.loss.name!r} leave it out'
        if self.control == "items" and self.epoch_steps is not None and self.warmup and self.start is None:
            yield 'control = "items" enlarges all batches of `epoch_steps`, and `warmup` draws nothing; leave one out'
        if self.start == "control" and self.control is not None:
            yield 'start = "control" continues the control itself, so the steps cannot be equal; leave `control` out'

    @property
    def control_continues(self) -> bool:
        """Return whether the control starts from the teacher's weights, as the student does."""
        return self.start == "teacher" and self.control is not None


class CoTeaching(Schedule):
    """Learning with Noisy Correspondence for Cross-modal Matching (Huang et al., NeurIPS 2021), for any model: two
    networks select each other's clean training pairs.

    In an epoch both networks train; in co-teaching, it has enough steps for the pairs selected as clean. `epochs` and
    `decay_epochs` count epochs of co-teaching.
    """

    warmup_epochs: PositiveInt
    """Epochs of each network alone on all pairs and all negatives, before co-teaching."""
    margin: Annotated[float, Field(gt=0.0, le=2.0)] = 0.2
    """Margin by which a certainly correct pair should score above a negative."""
    mask_positives: bool = True
    """Other captions of an anchor's image are not negatives."""
    threshold: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.5
    """Pairs with a higher probability of being correct are selected as clean."""
    soft_margin: Literal["exponential", "linear", "sin"] = "exponential"
    """Growth of a pair's margin with its label."""
    soft_labels: Literal["pair", "broadcast"] = "pair"
    """`pair`: each pair has one label, and its margin in both directions (paper). `broadcast`, as in the released code:
    the label of entry (i, j) mixes pair i's probability with the prediction for pair j, and captions as anchors have
    the margins of the images' rows."""
    start_up: StartUp | None = None
    """`auto`: self-paced hardness of online negatives after the warm-up; by default the hardest."""
    rectify_from: NonNegativeInt | None = None
    """Epoch of co-teaching, from 0, from which pairs flagged as noisy train as well; by default half of all."""

    @property
    def first_rectified(self) -> int:
        return self.epochs // 2 if self.rectify_from is None else self.rectify_from


def control_training(training: SecondRoundSection, encoded_groups: int = 1, rounds: int = 1) -> Training:
    """Return the same training without offline negatives and distillation, on the online loss or the loss itself.

    With `control = "items"` its batch holds as many pairs as the student encodes in a step that draws, and it has more
    epochs, so that both encode as much; with a number it has that many times the steps, rounded to whole epochs unless
    `epoch_steps` is set. `rounds` counts the trainings that a student with [refresh] continues.

    Warm-up epochs that are online anyway are dropped, so that equal trainings have equal keys.
    """
    if training.control is not None:
        groups = encoded_groups if training.control == "items" else 1
        times = 1.0 if isinstance(training.control, str) else training.control
        listed = 0 if training.distillation is None else training.distillation.listed
        warming, longer = min(groups, 1 + listed), groups  # a warm-up draws for lists alone
        if (steps := training.epoch_steps) is not None:
            warming, longer, times, steps = 1, 1, 1.0, round(times * steps)
        ends, warm = (training.epochs, *training.decay_epochs), len(training.warmup)
        encoded = [min(end, warm) * warming + max(0, end - warm) * longer for end in ends]
        epochs, *decay = (round(rounds * times * count) for count in encoded)
        schedule: dict[str, Any] = {"batch_size": groups * training.batch_size, "epoch_steps": steps}
        schedule |= {"epochs": epochs, "decay_epochs": tuple(decay)}
        training = training.model_copy(update=schedule)
    warmup, loss = list(training.warmup), control_version(training.loss)
    while warmup and warmup[-1] == "online" and isinstance(loss, OnlineLoss):
        warmup.pop()
    shared = {name: getattr(training, name) for name in Training.model_fields}
    return Training.model_validate({**shared, "loss": loss, "warmup": tuple(warmup), "distillation": None})


def plain_training(section: CoTeaching) -> SecondRoundSection:
    """Return the training of one of the two networks, alone on all pairs: same epochs and learning rates, the online
    loss instead of co-teaching, and in the warm-up the sum over negatives, not their mean (under one gradient clip)."""
    schedule = section.model_dump(include={*Schedule.model_fields}) | {
        "epochs": section.warmup_epochs + section.epochs,
        "decay_epochs": tuple(section.warmup_epochs + after for after in section.decay_epochs),
        "warmup": ("sum",) * section.warmup_epochs,
        "start_up": section.start_up,
    }
    online = OnlineLoss(name="online", margin=section.margin, mask_positives=section.mask_positives)
    return SecondRoundSection(**schedule, loss=online)
