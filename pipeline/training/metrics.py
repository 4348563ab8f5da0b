"""The lines of `metrics.jsonl`, and the collapse plateau. Reports read them without torch."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import NonNegativeInt, PositiveFloat
from typing_extensions import NotRequired, TypedDict

from aoq.pipeline.reading import parse_json, reading

logger = logging.getLogger(__name__)

NEAR, GAP = 0.02, 0.02
PATIENCE = 300
"""Steps on the plateau before the warning: many trainings are flat for a while at the start."""


class MetricsLog:
    """Append-only lines; a checkpoint keeps `position`, and `rewind` drops the lines after it."""

    def __init__(self, folder: Path, *, tensorboard: bool = False) -> None:
        self.path = folder / "metrics.jsonl"
        self._events = folder / "tensorboard" if tensorboard else None
        self._writer: Any = None

    def append(self, step: int, line: Mapping[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, **line}) + "\n")
        if self._events is not None:
            self._writer, self._events = _summary_writer(self._events, step), None
        if self._writer is not None:
            for name, value in line.items():
                if isinstance(value, (int, float)):
                    self._writer.add_scalar(name, value, step)

    @property
    def position(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def sha256(self, position: int | None = None) -> str:
        """Hash the log before a position, by default all of it."""
        return sha256(self.path.read_bytes()[:position] if self.path.exists() else b"").hexdigest()

    def rewind(self, position: int) -> None:
        if self.position > position:
            os.truncate(self.path, position)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


def _summary_writer(folder: Path, step: int) -> Any:
    """Open TensorBoard's writer, or warn; it hides what an interrupted run wrote from this step on."""
    try:
        from torch.utils.tensorboard import SummaryWriter

        return SummaryWriter(folder, purge_step=step)
    except (ImportError, OSError) as error:
        remedy = '; `pip install "aoq[tensorboard]"`' if isinstance(error, ImportError) else ""
        logger.warning("no TensorBoard log: %s%s", error, remedy)
        return None


class _Line(TypedDict):
    """A window of steps or a validation, with the fields that are read."""

    step: NonNegativeInt
    epoch: NotRequired[NonNegativeInt]
    offline_match_probability: NotRequired[float | None]
    loss_name: NotRequired[str]
    steps_per_second: NotRequired[PositiveFloat]
    dev_rsum: NotRequired[float | None]
    dev_i2t_r1: NotRequired[float | None]
    dev_t2i_r1: NotRequired[float | None]
    retrieval_loss: NotRequired[float | None]
    online: NotRequired[float | None]
    offline: NotRequired[float | None]
    derived: NotRequired[float | None]
    weight_mean: NotRequired[float | None]
    hardness: NotRequired[float | None]
    temperature: NotRequired[float | None]
    offline_harder_share: NotRequired[float | None]
    collision_rate: NotRequired[float | None]
    positive_gap: NotRequired[float | None]


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read the complete lines; text after the last line's end is still being written."""
    with reading(path, "the log of a training"):
        return [dict(parse_json(line, _Line)) for line in path.read_bytes().split(b"\n")[:-1]]


def training_seconds(lines: Sequence[Mapping[str, Any]]) -> float:
    """Sum the seconds of all steps of a training, without validations."""
    windows = [line for line in lines if "steps_per_second" in line]
    taken = np.diff([0, *(line["step"] for line in windows)])
    return float(sum(steps / line["steps_per_second"] for steps, line in zip(taken, windows, strict=True)))


def means_by_epoch(lines: Sequence[Mapping[str, Any]], figure: str) -> list[float]:
    """Average a figure over the steps of each epoch that has it."""
    windows: dict[int, list[tuple[float, int]]] = {}
    for line, steps in zip(lines, np.diff([line["step"] for line in lines], prepend=0), strict=True):
        if figure in line:
            windows.setdefault(line["epoch"], []).append((line[figure], steps))
    by_epoch = (np.transpose(one) for one in windows.values())
    return [round(float(np.average(means, weights=steps)), 3) for means, steps in by_epoch]


def on_plateau(means: Mapping[str, float]) -> bool:
    """Return whether the loss is within 2 % of that of equal similarities, and positives do not stand out."""
    # The loss alone cannot tell: hardest negatives as similar as the positives cost the same while a model learns.
    loss, plateau = means["retrieval_loss"], means["plateau"]
    return abs(loss - plateau) <= NEAR * plateau and means["positive_gap"] <= GAP


@dataclass
class CollapseDetector:
    """Warns once when a training stays on the plateau."""

    steps: int = 0
    """Steps on the plateau so far."""
    warned: bool = False

    def observe(self, loss_name: str, means: Mapping[str, float], *, steps: int, can_pace: bool = True) -> bool:
        """Observe the means of the last `steps` steps; return True while collapsed.

        `can_pace` says whether a start-up would help.
        """
        if not on_plateau(means):
            self.steps, self.warned = 0, False
            return False
        self.steps += steps
        if self.steps >= PATIENCE and not self.warned:
            self.warned = True
            remedy = '`start_up = "auto"`, which starts with easier online negatives, or ' if can_pace else ""
            logger.warning(
                f"the {loss_name} loss has stayed at {means['retrieval_loss']:.1f} for {self.steps} steps: the plateau "
                f"of a collapsed model, which gives all pairs the same similarity ({means['plateau']:.1f}). Try "
                f"{remedy}a lower learning rate."
            )
        return self.steps >= PATIENCE
