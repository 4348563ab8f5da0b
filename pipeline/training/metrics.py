"""`metrics.jsonl`: one line a window of steps and one a validation; the same lines when a run is resumed."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)


class MetricsLog:
    """Append-only lines; `position` goes into checkpoints and `rewind` drops what came after one."""

    def __init__(self, path: Path, tensorboard: Path | None = None) -> None:
        self._path = path
        self._writer = _summary_writer(tensorboard) if tensorboard else None

    def append(self, step: int, line: Mapping[str, Any]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, **line}) + "\n")
        if self._writer is not None:
            for name, value in line.items():
                if isinstance(value, (int, float)):
                    self._writer.add_scalar(name, value, step)

    @property
    def position(self) -> int:
        return self._path.stat().st_size if self._path.exists() else 0

    def rewind(self, position: int) -> None:
        if self.position > position:
            os.truncate(self._path, position)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _summary_writer(folder: Path) -> Any:
    """TensorBoard's writer, or None with a warning: watching must never stop a training."""
    try:
        from torch.utils.tensorboard import SummaryWriter

        return SummaryWriter(folder)
    except (ImportError, OSError) as error:
        logger.warning('no TensorBoard log: %s; `pip install "aoq[tensorboard]"`', error)
        return None


class Window:
    """Sums figures over some steps."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._started = time.perf_counter()
        self.steps = 0

    def add(self, figures: Mapping[str, float]) -> None:
        self.steps += 1
        for name, value in figures.items():
            self._sums[name] = self._sums.get(name, 0.0) + value

    @property
    def steps_per_second(self) -> float:
        return self.steps / (time.perf_counter() - self._started)

    def means(self) -> dict[str, float]:
        return {name: round(value / self.steps, 6) for name, value in self._sums.items()}
