"""The section that each stage trains by: the experiment's own, or one derived from it."""

from __future__ import annotations

from aoq.pipeline.config.losses import OnlineLoss, control_version
from aoq.pipeline.config.training import CoTeaching, SecondRound, Training
from aoq.pipeline.stages.chain import Chain


def control_training(training: Training) -> Training:
    """Return the same schedule and constraints without offline negatives: on the online loss, or on the loss itself.

    Warm-up epochs that are online anyway are dropped, so that equal trainings have equal keys.
    """
    warmup, loss = list(training.warmup), control_version(training.loss)
    while warmup and warmup[-1] == "online" and isinstance(loss, OnlineLoss):
        warmup.pop()
    shared = {name: getattr(training, name) for name in Training.model_fields}
    return Training.model_validate({**shared, "loss": loss, "warmup": tuple(warmup)})


def student_training(student: SecondRound) -> SecondRound:
    """Return the second round's schedule; fine-tuning has no warm-up and no start-up, which are for fresh weights."""
    return student if student.start is None else student.model_copy(update={"warmup": (), "start_up": None})


def trained_by(chain: Chain, stage: str) -> Training | CoTeaching:
    """Return the section of the experiment that a stage trains by."""
    experiment = chain.experiment
    if stage == "first_round":
        assert experiment.first_round is not None  # without it this stage does not train
        return experiment.first_round
    if stage == "control":
        return control_training(experiment.student)
    return experiment.co_teaching or student_training(experiment.student)
