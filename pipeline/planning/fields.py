"""What of a section shapes a stage, and so is part of its key."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from aoq.pipeline.config.losses import online_version
from aoq.pipeline.config.mining import Mining
from aoq.pipeline.config.sampling import Sampling
from aoq.pipeline.config.training import SecondRound, Training

LATER_SAMPLING = ("gap", "sharpness", "windows", "harder", "hardest")


def control_training(training: Training) -> Training:
    """The same schedule and constraints with the online loss in place of the offline one.

    Warm-up epochs that are online anyway are no longer told apart, so that equal trainings have equal keys.
    """
    warmup = list(training.warmup)
    while warmup and warmup[-1] == "online":
        warmup.pop()
    shared = {name: getattr(training, name) for name in Training.model_fields}
    return Training.model_validate({**shared, "loss": online_version(training.loss), "warmup": tuple(warmup)})


def student_training(student: SecondRound) -> SecondRound:
    """The second round's own: where it fine-tunes, warm-up and start-up, for fresh weights, are the control's alone."""
    return student if student.start is None else student.model_copy(update={"warmup": (), "start_up": None})


def schedule(training: Training) -> dict[str, Any]:
    """Options that came later are None, and have no part in keys, while they are not used."""
    return training.model_dump(mode="json", exclude_none=True)


def mined(mining: Mining) -> dict[str, Any]:
    """Exact searches all find the same lists, so which of them it was does not matter."""
    said = values(mining)
    return said if mining.is_approximate else {**said, "search": "exact", "recall_floor": 1.0}


def sampled(sampling: Sampling) -> dict[str, Any]:
    return _used(sampling, LATER_SAMPLING)


def _used(section: BaseModel, later: tuple[str, ...]) -> dict[str, Any]:
    """Options that came later have no part in keys while they are not used."""
    return {name: value for name, value in values(section).items() if value is not None or name not in later}


def values(section: BaseModel) -> dict[str, Any]:
    return section.model_dump(mode="json")
