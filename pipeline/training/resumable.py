"""What trainings share: epochs, the best of them, a log, and checkpoints to resume from, to the bit."""

from __future__ import annotations

import logging
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from aoq.models.base import MatchingModel
from aoq.pipeline.artifact import file_sha256
from aoq.pipeline.training.checkpoint import load_state, read_weights, save_model, save_state
from aoq.pipeline.training.metrics import MetricsLog, Window

logger = logging.getLogger(__name__)

LOG_STEPS = 50
Validate = Callable[[Sequence[MatchingModel]], Mapping[str, float]]


@dataclass(frozen=True)
class Run:
    """Where and how a training runs: nothing of it shapes the result."""

    work: Path
    device: torch.device
    checkpoint_steps: int = 500
    tensorboard: bool = False
    progress: Callable[[int, int, str], None] = lambda done, total, text: None


@dataclass
class State:
    """Where a training stands; everything but the metrics' position is a function of the steps taken."""

    epoch: int = 0
    step: int = 0
    """Steps taken in this epoch (of this network, where there are two)."""
    best_rsum: float = -math.inf
    best_epoch: int = -1
    metrics_position: int = 0
    history: list[dict[str, float]] = field(default_factory=list)


class Resumable(ABC):
    """Models with their place in a schedule of `epochs`; a subclass says what an epoch is and what else it keeps."""

    state: State
    weights: tuple[str, ...] = ("model.safetensors",)
    """The file of each model's best weights."""

    def __init__(
        self,
        models: Sequence[MatchingModel],
        description: Mapping[str, Any],
        epochs: int,
        learning_rate: float,
        run: Run,
    ) -> None:
        self.models, self.epochs, self.run = [model.to(run.device) for model in models], epochs, run
        self.optimizers = [torch.optim.Adam(model.parameters(), lr=learning_rate) for model in models]
        self._description = description
        self._log = MetricsLog(run.work / "metrics.jsonl", run.work / "tensorboard" if run.tensorboard else None)

    @property
    @abstractmethod
    def taken(self) -> int:
        """Steps in all."""

    @abstractmethod
    def train_epoch(self) -> None:
        """The rest of the epoch the state stands in."""

    @abstractmethod
    def kept(self) -> dict[str, Any]:
        """What a checkpoint holds besides the state and the state of torch's random numbers."""

    @abstractmethod
    def restore(self, kept: Mapping[str, Any]) -> None: ...

    @property
    def can_be_best(self) -> bool:
        return True

    def keep_best(self) -> None:
        for model, name in zip(self.models, self.weights, strict=True):
            save_model(self.run.work / name, model.state_dict(), self._description)

    def train(self, validate: Validate) -> dict[str, Any]:
        """Train to the last epoch, from the last checkpoint if there is one; returns what the manifest should say."""
        self._resume()
        started, state = time.perf_counter(), self.state
        while state.epoch < self.epochs:
            self.train_epoch()
            metrics = dict(validate(self.models))
            state.history.append(metrics)
            if self.can_be_best and metrics["rsum"] > state.best_rsum:
                state.best_rsum, state.best_epoch = metrics["rsum"], state.epoch
                self.keep_best()
            self.append({f"dev_{name}": value for name, value in metrics.items()})
            logger.info("epoch %d: dev rsum %.1f", state.epoch + 1, metrics["rsum"])
            self.end_epoch()
            self.checkpoint()
        return {
            "metrics": state.history[state.best_epoch],
            "best_epoch": state.best_epoch,
            "dev_rsum_by_epoch": [round(metrics["rsum"], 3) for metrics in state.history],
            "steps": self.taken,
            "training_seconds_this_run": round(time.perf_counter() - started, 1),
            "final_weights_sha256": self._close(),
            "device": str(self.run.device),
            "threads": torch.get_num_threads(),
        }

    def begin_epoch(self, number: int, learning_rate: float) -> None:
        """Set the rate of one model, which hears of every epoch once: a resumed one has begun before."""
        for group in self.optimizers[number].param_groups:
            group["lr"] = learning_rate
        if self.state.step == 0:
            self.models[number].begin_epoch(self.state.epoch, self.epochs)

    def take_steps(self, steps: int, step: Callable[[], Mapping[str, float]], record: Callable[[Window], None]) -> None:
        """The rest of the epoch's `steps`, their figures recorded window by window; checkpoints lie between windows."""
        state, window = self.state, Window()
        while state.step < steps:
            window.add(step())
            state.step += 1
            if self.taken % LOG_STEPS == 0 or state.step == steps:
                record(window)
                window = Window()
                if self.taken % self.run.checkpoint_steps < LOG_STEPS and state.step < steps:
                    self.checkpoint()

    def end_epoch(self) -> None:
        self.state.epoch, self.state.step = self.state.epoch + 1, 0

    def append(self, line: Mapping[str, Any]) -> None:
        """A line of the log."""
        self._log.append(self.taken, {"epoch": self.state.epoch, **line})

    def append_window(self, window: Window, about: Mapping[str, Any], learning_rate: float) -> None:
        speed = round(window.steps_per_second, 3)
        self.append({**about, "learning_rate": learning_rate, **window.means(), "steps_per_second": speed})

    def check_finite(self, losses: Float[np.ndarray, "*shape"] | float) -> None:
        if not np.isfinite(losses).all():
            raise ValueError(
                f"a loss of epoch {self.state.epoch}, step {self.state.step} is not finite; check the features with "
                "`aoq data check`, then try a lower learning rate."
            )

    def checkpoint(self) -> None:
        self.state.metrics_position = self._log.position
        random = {"cpu": torch.get_rng_state()}
        if self.run.device.type == "cuda":
            random["cuda"] = torch.cuda.get_rng_state(self.run.device)
        save_state(self.run.work / "last.ckpt", {"state": vars(self.state), **self.kept(), "random": random})

    def _resume(self) -> None:
        """Stand where the last checkpoint stood, if there is one."""
        path = self.run.work / "last.ckpt"
        if path.is_file():
            content = load_state(path)
            self.restore(content)
            torch.set_rng_state(content["random"]["cpu"])
            if self.run.device.type == "cuda" and "cuda" in content["random"]:
                torch.cuda.set_rng_state(content["random"]["cuda"], self.run.device)
            self.state = type(self.state)(**content["state"])
            for name in self.weights if self.state.best_epoch >= 0 else ():
                read_weights(self.run.work / name)  # raises if the best so far was damaged
            logger.info("resuming at epoch %d, step %d", self.state.epoch + 1, self.state.step)
        self._log.rewind(self.state.metrics_position)

    def _close(self) -> list[str]:
        """Drop what only a resumed run needs; the sha256 of the final weights tell two trainings apart."""
        self._log.close()
        found, final = [], self.run.work / "final.safetensors"
        for model in self.models:
            save_model(final, model.state_dict(), self._description)
            found.append(file_sha256(final))
        final.unlink()
        (self.run.work / "last.ckpt").unlink(missing_ok=True)
        return found
