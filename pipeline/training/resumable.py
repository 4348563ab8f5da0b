"""Base of all trainings: epochs, the best of them, a log, and checkpoints that resume bit for bit."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import nn

from aoq.models.base import MatchingModel
from aoq.pipeline.arithmetic import products_in
from aoq.pipeline.build import UNITS
from aoq.pipeline.config.training import Training
from aoq.pipeline.data.batches import PairData, steps_per_epoch
from aoq.pipeline.digests import file_sha256
from aoq.pipeline.evaluation.ranks import DEV_RANKS, write_ranks
from aoq.pipeline.evaluation.retrieval import Ranks, summarise
from aoq.pipeline.training.adapters import merged_weights
from aoq.pipeline.training.ahead import made_ahead
from aoq.pipeline.training.average import Average
from aoq.pipeline.training.checkpoint import pack, save_model, unpack
from aoq.pipeline.training.kept_files import BestEpochs, Checkpoints, take_over
from aoq.pipeline.training.metrics import MetricsLog, read_metrics
from aoq.pipeline.training.optimizer import learning_rate, make_optimizer, set_up_towers
from aoq.pipeline.training.precision import in_precision
from aoq.pipeline.training.run import Run, State
from aoq.pipeline.training.window import Figure, Window

logger = logging.getLogger(__name__)
T = TypeVar("T")

LOG_STEPS = 50
Validate = Callable[[Sequence[MatchingModel]], Ranks]
"""Computes the ranks on dev."""


@dataclass(kw_only=True, eq=False, repr=False)
class Resumable(ABC):
    """Models with their place in a schedule; a subclass says what an epoch is and what else it keeps.

    Models are trained in place. Their best weights (dev rsum), the ranks on dev with these, and `metrics.jsonl` are
    written into `run.work`. A killed run continues from its last checkpoint to the same weights. A checkpoint names the
    best epoch's files and what stands in the log; without these it is a damaged one, and the one before is taken.
    """

    models: Sequence[MatchingModel]
    description: Mapping[str, Any]
    pairs: PairData
    schedule: Training
    seed: int
    run: Run
    state: State = field(default_factory=State)
    weights: ClassVar[tuple[str, ...]] = ("model.safetensors",)
    """The file of each model's best weights."""

    def __post_init__(self) -> None:
        for model in self.models:
            set_up_towers(model.to(self.run.device), self.schedule)
        self.optimizers = [make_optimizer(model, self.schedule, self.learnt_besides()) for model in self.models]
        self.computing = [in_precision(model, self.schedule.precision, self.run.device) for model in self.models]
        """The models as steps compute with them."""
        decay = self.schedule.ema
        self.averages = [] if decay is None else [Average(model, decay) for model in self.models]
        self.steps = steps_per_epoch(self.pairs.split.caption_count, self.schedule.batch_size)
        """Steps in an epoch of one model on all pairs."""
        warm, steps = self.schedule.warmup_steps or 0, self.steps * self.schedule.epochs
        if warm >= steps:
            raise ValueError(f"warmup_steps = {warm} leaves none of {steps} steps; lower it.")
        self._log = MetricsLog(self.run.work, tensorboard=self.run.tensorboard)
        self._kept = self.run.work / UNITS
        self._checkpoints, self._best = Checkpoints(self._kept), BestEpochs(self._kept)

    @property
    def taken(self) -> int:
        """Number of steps taken in all."""
        return self.state.epoch * self.steps + self.state.step

    @property
    def seen(self) -> PairData:
        """Return the pairs of this epoch."""
        return self.pairs.augmented(self.schedule.augment, self.seed, self.state.epoch)

    @abstractmethod
    def train_epoch(self) -> None:
        """Train the rest of the current epoch."""

    @abstractmethod
    def kept(self) -> dict[str, Any]:
        """Content of a checkpoint besides the state and the state of torch's random numbers."""

    @abstractmethod
    def restore(self, kept: Mapping[str, Any]) -> None: ...

    def learnt_besides(self) -> Iterable[nn.Parameter]:
        """Parameters learnt with a model that are not part of it."""
        return ()

    @property
    def evaluated(self) -> Sequence[MatchingModel]:
        """Models to evaluate and keep: the trained ones, or the averages of their weights."""
        return [cast(MatchingModel, average.module) for average in self.averages] or self.models

    @property
    def can_be_best(self) -> bool:
        return True

    def keep_best(self, folder: Path) -> None:
        """Write the files of the best epoch so far."""
        for model, name in zip(self.evaluated, self.weights, strict=True):
            save_model(folder / name, merged_weights(model), self.description)

    def train(self, validate: Validate) -> dict[str, Any]:
        """Train to the last epoch, from the last checkpoint if there is one; return notes for the manifest."""
        self._resume()
        self._begin_alike()
        started, state = time.perf_counter(), self.state
        with closing(self._log):
            while state.epoch < self.schedule.epochs:
                with products_in(self.schedule.precision):
                    self.train_epoch()
                ranks = validate(self.evaluated)
                metrics = summarise(ranks)
                state.history.append(metrics)
                if self.can_be_best and metrics["rsum"] > state.best_rsum:
                    state.best_rsum, state.best_epoch = metrics["rsum"], state.epoch
                    state.best_files = self._leave_best(ranks)
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
            "processes": self.run.processes.count,
        }

    def follow(self, validate: Callable[[Sequence[MatchingModel]], object]) -> None:
        """Take every step of the leader, from its starting position."""
        self._begin_alike()
        while self.state.epoch < self.schedule.epochs:
            with products_in(self.schedule.precision):
                self.train_epoch()
            validate(self.evaluated)
            self.end_epoch()

    def _begin_alike(self) -> None:
        """Begin in all processes as the leader does: at its checkpoint, or with its fresh weights."""
        processes = self.run.processes
        if processes.are_several:
            mine = pack(self._content()) if processes.leads else b""
            given = unpack(processes.from_leader(mine))
            if not processes.leads:
                self._stand_at(given)

    def windows(
        self, number: int, steps: int, make: Callable[[int], T], take: Callable[[T], Mapping[str, Figure]]
    ) -> Generator[Window]:
        """Train the rest of one model's epoch of `steps`, window by window; checkpoints lie between windows.

        Batches are made ahead of their steps. A model is told of every epoch once: a resumed one has begun
        before.
        """
        state, window = self.state, Window()
        if state.step == 0:
            self.models[number].begin_epoch(state.epoch, self.schedule.epochs)
        with closing(made_ahead(make, range(state.step, steps), self.run.workers)) as batches:
            for batch in batches:
                for group in self.optimizers[number].param_groups:
                    group["lr"] = group.get("share", 1.0) * self._rate(state.step)
                window.add(take(batch))
                for average in self.averages[number : number + 1]:
                    average.update_parameters(self.models[number])
                state.step += 1
                if self.taken % LOG_STEPS == 0 or state.step == steps:
                    yield window
                    if self.taken % self.run.checkpoint_steps < LOG_STEPS and state.step < steps:
                        self.checkpoint()
                    window = Window()  # whose clock starts here

    def _rate(self, step: int) -> float:
        """Return the learning rate of a step of this epoch."""
        return learning_rate(self.schedule, self.state.epoch, step, self.steps)

    def record(self, window: Window, about: Mapping[str, Any], number: int = 0) -> None:
        """Log a line of figures of a model's steps; a loss that is not finite is an error."""
        state, line, epochs = self.state, window.means(), self.schedule.epochs
        self.check_finite([line["loss"], line.get("noisy_loss", 0.0)])
        rate, speed = self._rate(state.step - 1), round(window.steps_per_second, 3)
        self.append({**about, "learning_rate": rate, **line, "steps_per_second": speed})
        done = (len(self.models) * state.epoch + number) * self.steps + state.step
        text = f"epoch {state.epoch + 1}/{epochs} {about['loss_name']} loss {line['loss']:.2f}"
        self.run.progress(done, len(self.models) * epochs * self.steps, text)

    def end_epoch(self) -> None:
        self.state.epoch, self.state.step = self.state.epoch + 1, 0

    def append(self, line: Mapping[str, Any]) -> None:
        """Append a line to the log."""
        if self.run.processes.leads:
            self._log.append(self.taken, {"epoch": self.state.epoch, **line})

    def means_by_epoch(self, figure: str) -> list[float]:
        """Average a figure of the log over the steps of each epoch that has it."""
        lines = read_metrics(self._log.path)
        windows: dict[int, list[tuple[float, int]]] = {}
        for line, steps in zip(lines, np.diff([line["step"] for line in lines], prepend=0), strict=True):
            if figure in line:
                windows.setdefault(line["epoch"], []).append((line[figure], steps))
        by_epoch = (np.transpose(found) for found in windows.values())
        return [round(float(np.average(means, weights=steps)), 3) for means, steps in by_epoch]

    def check_finite(self, losses: ArrayLike) -> None:
        if not np.isfinite(losses).all():
            raise ValueError(
                f"a loss of epoch {self.state.epoch}, step {self.state.step} is not finite; check the features with "
                "`aoq data check`, then try a lower learning rate."
            )

    def checkpoint(self) -> None:
        if not self.run.processes.leads:
            return
        self.state.metrics_position, self.state.metrics_sha256 = self._log.position, self._log.sha256()
        random = {"cpu": torch.get_rng_state()}
        if self.run.device.type == "cuda":
            random["cuda"] = torch.cuda.get_rng_state(self.run.device)
        self._checkpoints.save({**self._content(), "random": random})
        self._best.drop(self.state.best_epoch)

    def _content(self) -> dict[str, Any]:
        """Content of a checkpoint, except for random numbers."""
        averages = {"averages": [average.state_dict() for average in self.averages]} if self.averages else {}
        return {"state": vars(self.state), **self.kept(), **averages}

    def _stand_at(self, content: Mapping[str, Any]) -> None:
        self.restore(content)
        for average, kept in zip(self.averages, content.get("averages", []), strict=True):
            average.load_state_dict(kept)
        self.state = type(self.state)(**content["state"])

    def _leave_best(self, ranks: Ranks) -> dict[str, str]:
        def fill(folder: Path) -> None:
            self.keep_best(folder)
            write_ranks(folder / DEV_RANKS, ranks)

        return self._best.write(self.state.best_epoch, fill)

    def _resume(self) -> None:
        """Resume at the last whole checkpoint, or at the start."""
        take_over(self.run.work, self._kept)
        content = self._checkpoints.load(lambda content: self._lost(type(self.state)(**content["state"])))
        if content is not None:
            self._stand_at(content)
            torch.set_rng_state(content["random"]["cpu"])
            if self.run.device.type == "cuda" and "cuda" in content["random"]:
                torch.cuda.set_rng_state(content["random"]["cuda"], self.run.device)
            logger.info("resuming at epoch %d, step %d", self.state.epoch + 1, self.state.step)
        self._best.drop(self.state.best_epoch)
        self._log.rewind(self.state.metrics_position)

    def _lost(self, state: State) -> Path | None:
        """Return a file that differs from what a checkpoint of this state names."""
        if lost := self._best.lost(state.best_epoch, state.best_files):
            return lost
        return None if self._log.sha256(state.metrics_position) == state.metrics_sha256 else self._log.path

    def _close(self) -> list[str]:
        """Hand over the best epoch's files; return the sha256 of the final weights, which tell two trainings apart.

        What a resumed run goes on from stays until the artefact is published: a run killed before takes no step anew.
        """
        found, final = [], self._kept / "final.safetensors"
        for model in self.models:
            save_model(final, merged_weights(model), self.description)
            found.append(file_sha256(final))
        if lost := self._lost(self.state):
            raise ValueError(f"{lost} was damaged after it was written; run again to make it again.")
        self._best.hand_over(self.state.best_epoch, self.state.best_files, self.run.work)
        return found
