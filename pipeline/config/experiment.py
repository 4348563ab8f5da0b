"""The whole configuration of an experiment: all its sections together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import Field, model_validator

from aoq.pipeline.config.dataset import DatasetSection, EvaluationSection
from aoq.pipeline.config.losses import LogitLoss
from aoq.pipeline.config.models import Model
from aoq.pipeline.config.screen import ScreenSection
from aoq.pipeline.config.section import Runs
from aoq.pipeline.config.tables import Mining, Refresh, Sampling
from aoq.pipeline.config.training import CoTeaching, SecondRoundSection, Training, control_training, plain_training

TOWER_OPTIONS = {
    **{name: {"image", "text"} for name in ("tower_rate", "freeze", "train_layers", "layer_decay")},
    **{name: {"image", "text"} for name in ("gradient_checkpointing", "lora")},
    "augment": {"image"},
}
"""Training options that need one of these towers."""
TABLE_SOURCES = ("teacher", "teacher_weights", "teacher_encoder", "first_round")


class Experiment(Runs):
    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of initial weights, batches and draws."""
    dataset: DatasetSection
    model: Model
    teacher: str | None = None
    """Experiment whose negative table the student trains on, instead of a first round of its own."""
    teacher_weights: str | None = None
    """Weights of `aoq import-checkpoint`, relative to the data root, instead of a first round."""
    teacher_encoder: str | None = None
    """A pretrained encoder of photographs and texts instead of a first round; also spelt `[teacher] encoder`."""
    weights: str | None = None
    """Imported weights instead of all training: a model to evaluate, alone or in an ensemble."""
    first_round: Training | None = None
    mining: Mining | None = None
    screen: ScreenSection | None = None
    sampling: Sampling = Sampling()
    second_round: SecondRoundSection | None = None
    refresh: Refresh | None = None
    co_teaching: CoTeaching | None = None
    """Two networks trained on noisy pairs instead of the rounds; without a table or a teacher."""
    evaluation: EvaluationSection = EvaluationSection()

    @property
    def student(self) -> SecondRoundSection:
        """The second round, or the plain training of one network in place of co-teaching."""
        if self.co_teaching is not None:
            return plain_training(self.co_teaching)
        if self.second_round is None:
            raise ValueError(f"experiment {self.name!r} trains nothing: it has `weights` instead of [second_round].")
        return self.second_round

    def trained_by(self, use: str) -> Training | CoTeaching:
        """Return the section of a training: the first round, the control or the second round."""
        if use == "first_round":
            assert self.first_round is not None  # without it this stage does not train
            return self.first_round
        if use == "second_round" and self.co_teaching is not None:
            return self.co_teaching
        student = self.student
        if student.start is not None and (use != "control" or student.control_continues):
            # Warm-up and start-up are for fresh weights, so fine-tuning has neither.
            student = student.model_copy(update={"warmup": (), "start_up": None})
        has_its_loss = isinstance(student.loss, LogitLoss) or student.loss.name == "online"
        is_control = has_its_loss and student.distillation is None and not self.uses_table
        if use == "control" or is_control:
            return control_training(student, self.encoded_groups, self.tuned_rounds)
        return student

    @property
    def tuned_rounds(self) -> int:
        """Number of trainings one after the other from the teacher's weights: with [refresh] several."""
        return 1 + (self.refresh.rounds if self.refresh and self.student.start == "teacher" else 0)

    @property
    def encoded_groups(self) -> int:
        """Number of images, and of captions, that the student encodes for each pair of its batch."""
        drawn = {"anchors": self.sampling.negatives or 1, "quintuplet": 2}
        distillation = self.student.distillation
        return 1 + drawn.get(self.student.loss.draws, 0) + (distillation.listed if distillation else 0)

    @property
    def uses_table(self) -> bool:
        """Return whether the student takes offline negatives, batches, a guide or a teacher's scores from a table."""
        student, sampling = self.student, self.sampling
        draws = student.loss.draws_offline or sampling.batches is not None or bool(sampling.guides)
        return draws or bool(student.distillation and student.distillation.listed)

    @model_validator(mode="before")
    @classmethod
    def _teacher_as_a_section(cls, content: Any) -> Any:
        if isinstance(content, dict) and isinstance(teacher := content.get("teacher"), dict):
            if list(teacher) != ["encoder"]:
                raise ValueError(f"[teacher] has one option, `encoder`; got {list(teacher)}")
            rest = {key: value for key, value in content.items() if key != "teacher"}
            content = {**rest, "teacher_encoder": teacher["encoder"]}
        return content

    @property
    def trainings(self) -> dict[str, Training | CoTeaching]:
        named = {name: getattr(self, name) for name in ("first_round", "second_round", "co_teaching")}
        return {name: section for name, section in named.items() if section is not None}

    def problems(self) -> Iterator[str]:
        rounds = (*TABLE_SOURCES, "mining", "second_round", "refresh")
        idle = [key for key in (*rounds, "screen", "sampling", "weights") if key in self.model_fields_set]
        if self.co_teaching is not None and idle:
            yield f"[co_teaching] replaces the rounds and needs no table; take out {idle}"
        if self.weights is not None and (present := self.set_among(rounds)):
            yield f"`weights` replace all training; take out {present}"
        if self.weights is None and self.second_round is None and self.co_teaching is None:
            yield "give [second_round] or [co_teaching], or imported `weights` to evaluate"
        yield from self._check_model_and_data()
        for name, section in self.trainings.items():
            yield from self._check_training(name, section)
        if self.second_round is not None:
            yield from self._check_table()
            yield from self._check_rounds(self.second_round)

    @property
    def _towers(self) -> set[str]:
        return {name.removesuffix("_tower") for name in self.model.towers}

    def _check_model_and_data(self) -> Iterator[str]:
        data, tower = self.dataset, getattr(self.model, "text_tower", None)
        if tower not in (None, data.tokeniser):
            yield f"[model] text_tower = {tower!r} reads its own tokeniser's ids; set [dataset] tokeniser to it too"
        if data.tokeniser is not None and tower is None and self.model.attends:
            attends = f"[model] {self.model.name} attends to whole words"
            yield f"{attends}, but [dataset] tokeniser cuts them into pieces; leave it out, or set `text_tower`"
        if "image" in self._towers and data.demo is not None and not data.demo.pictures:
            yield "[model] image_tower reads photographs; set [dataset.demo] pictures = true to have them drawn"
        if "image" in self._towers and data.max_regions is not None:
            yield "[dataset] max_regions cuts region features, but an image_tower reads none; leave it out"

    def _check_training(self, name: str, section: Training | CoTeaching) -> Iterator[str]:
        """Yield requirements of a training that the model lacks: pretrained towers, attention."""
        model, towers, frozen = self.model.name, self._towers, {*(section.freeze or ())}
        for option in section.set_among(TOWER_OPTIONS):
            if not towers & (needed := TOWER_OPTIONS[option]):
                missing = " or ".join(f"`{side}_tower`" for side in sorted(needed))
                yield f"[{name}] {option} is for pretrained towers, but [model] {model} has none; set {missing}"
        names = ("image_tower", "text_tower", "image_pooling", "text_pooling", "project")
        image, text, *how = (getattr(self.model, name, None) for name in names)
        is_pair = image is not None and image == text and how == ["native", "native", False]
        if getattr(getattr(section, "loss", None), "temperature", None) == "pair" and not is_pair:
            pair = 'one pair as both towers, both poolings "native" and `project` false'
            yield f'[{name}] loss.temperature = "pair" needs a pretrained pair: {pair}; or give a number'
        if not self.model.attends and getattr(section, "constraints", None) is not None:
            yield f"[{name}.constraints] needs attention, but [model] {model} has none; choose scan, for example"
        if towers <= frozen and (training := section.set_among(("lora", "train_layers", "tower_rate", "layer_decay"))):
            frozen_all = f"`freeze` names every tower of [model] {model}"
            yield f"[{name}] {training[0]} is for towers that are not frozen, and {frozen_all}; take one of them out"
        if absent := sorted(frozen - towers):
            missing = f"[model] {model} has no `{absent[0]}_tower`"
            yield f"[{name}] freeze names {absent[0]!r}, but {missing}; take it out, or set one"

    def _check_table(self) -> Iterator[str]:
        needs_table = self.uses_table or self.student.start == "teacher"
        needs_table |= self.student.distillation is not None and not self.student.distillation.teachers
        if not needs_table and not self.set_among((*TABLE_SOURCES, "mining", "refresh")):
            return  # named teachers are enough, and the control of their student needs none
        if len(sources := self.set_among(TABLE_SOURCES)) != 1:
            ways = "[first_round], `teacher_weights`, [teacher] encoder and `teacher`"
            yield f"set exactly one of {ways}, which make a table or have one; got {sources or 'none'}"
        if (self.mining is None) != (self.teacher is not None):
            yield "give either [mining], to make a table, or `teacher`, to take its table"
        if self.teacher is None and self.teacher_encoder is None and not self.model.makes_embeddings:
            yield f"[model] {self.model.name} has no single vector per image to mine with; name a `teacher` that has"
        if self.mining and self.mining.hubness and self.screen and self.screen.relative_margin is not None:
            yield "[screen] relative_margin needs positive scores; with [mining] hubness use absolute_margin"
        if self.refresh is not None and self.refresh.rounds and not self.uses_table:
            yield f"[refresh] makes tables, but loss {self.student.loss.name!r} uses none; leave it out"

    def _check_rounds(self, student: SecondRoundSection) -> Iterator[str]:
        if self.first_round is not None and self.first_round.loss.needs_table:
            draws = f"{self.first_round.loss.name!r} draws from a table"
            yield f"[first_round.loss] {draws}, but there is no table yet; choose 'sum', 'online' or 'infonce'"
        if student.loss.makes_triples and not self.sampling.resample:
            yield 'loss.companions = "anchors" needs [sampling] resample: else a triple may hold one image twice'
        if self.first_round is not None and (distillation := self.first_round.distillation) is not None:
            if distillation.kind != "batch":
                yield f'[first_round.distillation] kind = "{distillation.kind}" needs a table, but there is none yet'
            elif not distillation.teachers:
                yield "[first_round.distillation] has no table to take its teacher from; name `teachers`"
        listed = student.distillation is not None and student.distillation.listed > 0
        if student.loss.makes_triples and listed:
            drawn = 'with companions = "anchors" most pairs of a triple are drawn themselves'
            yield f'[second_round.distillation] lists are drawn for each anchor, but {drawn}; choose kind = "batch"'
        if self.sampling.negatives is not None and student.loss.draws in ("quintuplet", "triples"):
            draws = f"loss {student.loss.name!r} draws a companion for each negative"
            yield f"[sampling] negatives: {draws}; choose 'offtri', 'infonce' or the like, or leave it out"
        if (screen := self.screen) is None:
            return
        if screen.suspected == "positive" and (listed or not student.loss.draws_offline):
            needs = "needs a loss that draws from the table, without distillation of lists"
            yield f'[screen] suspected = "positive" {needs}; choose "drop"'
        if not (student.loss.draws_offline or listed):
            return
        if screen.suspected == "soft_margin" and self.sampling.negatives is not None:
            others = "[sampling] negatives are compared with all anchors"
            yield f'[screen] suspected = "soft_margin" softens the negative of one anchor, but {others}; choose "drop"'
        if screen.suspected == "drop" and screen.match_prior is not None and not screen.suspecting:
            yield '[screen] match_prior sets no flag, so suspected = "drop" drops nothing; choose "downweight"'
        if screen.suspected == "soft_margin" and student.loss.makes_triples:
            others = 'with companions = "anchors" most pairs of a triple are not offline negatives'
            yield f'[screen] suspected = "soft_margin" softens offline negatives, but {others}; choose "downweight"'
        if screen.suspected == "soft_margin" and not student.loss.softens:
            lacks = f"loss {student.loss.name!r} has no margin_offline above 0"
            yield f'[screen] suspected = "soft_margin" lowers the margin, but {lacks}; set it, or choose "drop"'
