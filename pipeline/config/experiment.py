"""What an experiment computes: all its sections together."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from aoq.pipeline.config.co_teaching import CoTeaching, plain_training
from aoq.pipeline.config.dataset import Dataset
from aoq.pipeline.config.evaluation import Evaluation
from aoq.pipeline.config.mining import Mining
from aoq.pipeline.config.models import Model
from aoq.pipeline.config.refresh import Refresh
from aoq.pipeline.config.sampling import Sampling
from aoq.pipeline.config.screen import Screen
from aoq.pipeline.config.section import Section
from aoq.pipeline.config.training import SecondRound, Training

TABLE_SOURCES = ("teacher", "teacher_weights", "first_round")


class Experiment(Section):
    name: str
    seed: Annotated[int, Field(ge=0)] = 0
    dataset: Dataset
    model: Model
    teacher: str | None = None
    """An experiment whose negative table this one trains on, instead of rounds one of its own."""
    teacher_weights: str | None = None
    """Weights of `aoq import-checkpoint`, relative to the data root, in place of a first round."""
    weights: str | None = None
    """Such weights in place of all training: a model to evaluate, alone or in an ensemble."""
    first_round: Training | None = None
    mining: Mining | None = None
    screen: Screen | None = None
    sampling: Sampling = Sampling()
    second_round: SecondRound | None = None
    refresh: Refresh | None = None
    co_teaching: CoTeaching | None = None
    """Two networks trained on noisy pairs, in place of the rounds: without a table, so without a teacher."""
    evaluation: Evaluation = Evaluation()

    @property
    def student(self) -> SecondRound:
        """The second round of an experiment that has one; of two networks that are co-taught, what is plain of it."""
        if self.co_teaching is not None:
            return plain_training(self.co_teaching)
        if self.second_round is None:
            raise ValueError(f"experiment {self.name!r} trains nothing: it has `weights` in place of [second_round].")
        return self.second_round

    @model_validator(mode="after")
    def _trains_or_not(self) -> Experiment:
        stages = (*TABLE_SOURCES, "mining", "second_round", "refresh")
        training = [key for key in stages if getattr(self, key) is not None]
        if self.weights is not None and training:
            raise ValueError(f"`weights` stand in place of all training; take out {training}")
        if self.weights is None and self.second_round is None and self.co_teaching is None:
            raise ValueError("give [second_round] or [co_teaching], or imported `weights` to evaluate")
        return self

    @model_validator(mode="after")
    def _co_teaches_alone(self) -> Experiment:
        others = (*TABLE_SOURCES, "mining", "screen", "sampling", "second_round", "refresh", "weights")
        if self.co_teaching is not None and (idle := [key for key in others if key in self.model_fields_set]):
            raise ValueError(f"[co_teaching] stands in place of the rounds and needs no table; take out {idle}")
        return self

    @model_validator(mode="after")
    def _one_table(self) -> Experiment:
        if self.weights is not None or self.co_teaching is not None:
            return self
        sources = [key for key in TABLE_SOURCES if getattr(self, key) is not None]
        if len(sources) != 1:
            raise ValueError(
                "give exactly one of [first_round] (train a teacher), `teacher_weights` (import one) and "
                f"`teacher` (use that experiment's table), got {sources or 'none'}"
            )
        if (self.mining is None) != (self.teacher is not None):
            raise ValueError("[mining] belongs to an experiment that makes its own table, and to no other")
        if self.teacher is None and not self.model.makes_embeddings:
            raise ValueError(
                f"[model] {self.model.name} compares fragments, and a search index needs embeddings; name a `teacher`"
            )
        if self.first_round is not None and self.first_round.loss.draws_offline:
            raise ValueError(
                f"[first_round.loss] {self.first_round.loss.name!r} draws from a table, and there is no table yet; "
                "choose one that draws none, 'sum' or 'online'"
            )
        return self

    @model_validator(mode="after")
    def _something_to_refresh(self) -> Experiment:
        if self.refresh is None:
            return self
        if not self.student.loss.draws_offline:
            raise ValueError(f"[refresh] makes tables, and loss {self.student.loss.name!r} uses none; leave it out")
        if self.refresh.drifted_below is not None and not self.model.makes_embeddings:
            raise ValueError(
                f"[refresh] drifted_below spares anchors of a search, and [model] {self.model.name} compares "
                "fragments: it orders lists and searches nothing. Leave it out"
            )
        return self

    @model_validator(mode="after")
    def _triples_of_negatives(self) -> Experiment:
        if self.second_round is not None and self.second_round.loss.makes_triples and not self.sampling.resample:
            raise ValueError(
                'loss.companions = "anchors" needs [sampling] resample: where offline negatives correspond, a triple '
                "holds one image twice"
            )
        return self

    @model_validator(mode="after")
    def _attention_to_constrain(self) -> Experiment:
        for name in ("first_round", "second_round"):
            training: Training | None = getattr(self, name)
            if training is not None and training.constraints is not None and not self.model.attends:
                raise ValueError(
                    f"[{name}.constraints] is about attention, and [model] {self.model.name} has none: it compares "
                    "whole images and captions. Leave the section out, or choose a model of fragments, such as scan"
                )
        return self
