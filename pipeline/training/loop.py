"""The training loop: epochs, steps, evaluation, the best epoch, and checkpoints that resume bit for bit."""

from __future__ import annotations

import logging
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import torch
from numpy.typing import ArrayLike

from aoq.models.base import MatchingModel
from aoq.pipeline.build import UNITS
from aoq.pipeline.config.losses import LogitLoss
from aoq.pipeline.config.training import Training
from aoq.pipeline.data.batches import PairData, steps_per_epoch
from aoq.pipeline.engine import products_in
from aoq.pipeline.evaluation.ranks import DEV_RANKS, write_ranks
from aoq.pipeline.evaluation.retrieval import Ranks, summarise
from aoq.pipeline.files import file_sha256
from aoq.pipeline.losses.info_nce import LearntTemperature
from aoq.pipeline.training.batches import Input, read_ahead
from aoq.pipeline.training.checkpoint import Checkpoints, pack_state, save_model, unpack_state
from aoq.pipeline.training.chunks import Cut, check_precision
from aoq.pipeline.training.metrics import MetricsLog
from aoq.pipeline.training.optimizer import learning_rate, make_average, make_optimizer, merged_weights, set_up_towers
from aoq.pipeline.training.processes import ALONE, Processes
from aoq.pipeline.training.step import Figure, Window

logger = logging.getLogger(__name__)

LOG_STEPS = 50
Validate = Callable[[Sequence[MatchingModel]], Ranks | None]
"""Computes the ranks on dev, in the leader."""


@dataclass(frozen=True)
class Run:
    """Where and how a training runs; nothing here changes the result."""

    work: Path
    device: torch.device
    checkpoint_steps: int = 500
    tensorboard: bool = False
    progress: Callable[[int, int, str], None] = lambda done, total, text: None
    workers: int = 0
    """Threads that draw and read batches ahead; with 0 the training's own thread does."""
    processes: Processes = ALONE
    """Processes that train together; only the leader writes."""


@dataclass
class State:
    """Position of a training; everything but the log's position is a function of the steps taken."""

    epoch: int = 0
    step: int = 0
    """Steps taken in this epoch, of this network."""
    network: int = 0
    """The network that is trained, in co-teaching."""
    taken: int = 0
    """Steps taken in all, by all networks."""
    best_rsum: float = -math.inf
    best_epoch: int = -1
    best_files: dict[str, str] = field(default_factory=dict)
    """The sha256 of each file that the best epoch left."""
    metrics_position: int = 0
    metrics_sha256: str = ""
    history: list[dict[str, float]] = field(default_factory=list)
    """Metrics on dev after each epoch."""
    hardness: list[Any] = field(default_factory=list)
    """Hardness of online negatives after each epoch, from 0 to 1; in co-teaching, that of each network."""
    learnt: list[dict[str, float]] = field(default_factory=list)
    """Numbers that the loss learns, after each epoch."""


@dataclass(kw_only=True, eq=False, repr=False)
class Loop(ABC):
    """Trains models, in place, through the epochs of a schedule; a subclass defines an epoch.

    The best weights (by dev rsum), their ranks on dev and `metrics.jsonl` are written into `run.work`. A killed run
    continues from its last checkpoint to the same weights.
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
        schedule, device = self.schedule, self.run.device
        check_precision(schedule.precision, device)
        self.cut = Cut(schedule.chunk, self.run.processes, in_bfloat16=schedule.precision == "bfloat16")
        self.learnt: LearntTemperature | None = None
        if isinstance(schedule.loss, LogitLoss) and schedule.loss.learn_temperature:
            self.learnt = LearntTemperature(**schedule.loss.learnt).to(device)
        for model in self.models:
            self.cut.check(model, gradient_checkpointing=bool(schedule.gradient_checkpointing))
            set_up_towers(model.to(device), schedule)
        learnt = () if self.learnt is None else tuple(self.learnt.parameters())
        self.optimizers = [make_optimizer(model, schedule, learnt) for model in self.models]
        self.averages = [] if schedule.ema is None else [make_average(model, schedule.ema) for model in self.models]
        self.pass_steps = steps_per_epoch(self.pairs.split.caption_count, schedule.batch_size)
        """Steps that visit every caption once."""
        self.steps = schedule.epoch_steps or self.pass_steps
        """Steps in an epoch of one model on all pairs."""
        warm, steps = schedule.warmup_steps or 0, self.steps * schedule.epochs
        if warm >= steps:
            raise ValueError(f"warmup_steps = {warm} leaves none of {steps} steps; lower it.")
        self.first_best = 0
        """The first epoch that can be the best."""
        self._log = MetricsLog(self.run.work, tensorboard=self.run.tensorboard)
        self._checkpoints = Checkpoints(self.run.work / UNITS, self._log)
        self._started = 0.0
        self._last_loss = ""

    @abstractmethod
    def train_epoch(self) -> None:
        """Train the rest of the current epoch."""

    @abstractmethod
    def content(self) -> dict[str, Any]:
        """Return what a checkpoint holds besides the state, weights, optimisers and torch's random numbers."""

    @abstractmethod
    def restore(self, content: Mapping[str, Any]) -> None: ...

    def train(self, validate: Validate) -> dict[str, Any]:
        """Train to the last epoch, from the last checkpoint if any; the leader returns notes for the manifest."""
        self._start()
        self._started = time.perf_counter()
        with closing(self._log):
            while self.state.epoch < self.schedule.epochs:
                with products_in(self.schedule.precision):
                    self.train_epoch()
                self._report(len(self.models) - 1, "steps; evaluating on dev")
                ranks = validate(self.evaluated)
                if ranks is not None:
                    self._evaluate(ranks)
                self.end_epoch()
                self.checkpoint()
        return self.notes() if self.run.processes.leads else {}

    def windows(
        self, number: int, steps: int, make: Callable[[int], Input], take: Callable[[Input], Mapping[str, Figure]]
    ) -> Generator[Window]:
        """Train one model for the rest of its epoch of `steps`, window by window; checkpoints lie between windows.

        `make` prepares a step's batch, ahead of time, and `take` trains on it.
        """
        state, window = self.state, Window()
        if state.step == 0:  # called once per epoch, even if the training is resumed within it
            self.models[number].begin_epoch(state.epoch, self.schedule.epochs)
        with closing(read_ahead(make, range(state.step, steps), self.run.workers)) as batches:
            for batch in batches:
                rate = learning_rate(self.schedule, state.epoch, state.step, self.steps)
                for group in self.optimizers[number].param_groups:
                    group["lr"] = group.get("share", 1.0) * rate
                window.add(take(batch))
                for average in self.averages[number : number + 1]:
                    average.update_parameters(self.models[number])
                state.step, state.taken = state.step + 1, state.taken + 1
                self._report(number)
                if state.taken % LOG_STEPS == 0 or state.step == steps:
                    yield window
                    if state.taken % self.run.checkpoint_steps < LOG_STEPS and state.step < steps:
                        self.checkpoint()
                    window = Window()  # its clock starts here

    def _report(self, number: int, doing: str = "steps") -> None:
        models, epochs, epoch = len(self.models), self.schedule.epochs, self.state.epoch
        done = (models * epoch + number) * self.steps + self.state.step
        self.run.progress(done, models * epochs * self.steps, f"{doing}, epoch {epoch + 1}/{epochs}{self._last_loss}")

    def record(self, window: Window, line: Mapping[str, Any]) -> None:
        """Log the means of a window of a model's steps with this line; a loss that is not finite is an error."""
        state, means = self.state, window.means()
        self.check_finite([means["loss"], means.get("noisy_loss", 0.0)])
        rate = learning_rate(self.schedule, state.epoch, state.step - 1, self.steps)
        self.append({**line, "learning_rate": rate, **means, "steps_per_second": round(window.steps_per_second, 3)})
        self._last_loss = f", {line['loss_name']} loss {means['loss']:.2f}"

    def check_finite(self, losses: ArrayLike) -> None:
        if not np.isfinite(losses).all():
            raise ValueError(
                f"a loss of epoch {self.state.epoch}, step {self.state.step} is not finite; check the features with "
                "`aoq data check`, then try a lower learning rate."
            )

    def append(self, line: Mapping[str, Any]) -> None:
        if self.run.processes.leads:
            self._log.append(self.state.taken, {"epoch": self.state.epoch, **line})

    @property
    def evaluated(self) -> Sequence[MatchingModel]:
        """Models to evaluate and keep: the trained ones, or the averages of their weights."""
        return [cast(MatchingModel, average.module) for average in self.averages] or self.models

    def _evaluate(self, ranks: Ranks) -> None:
        """Log the metrics on dev, and keep the weights of the best epoch so far."""
        state, metrics = self.state, summarise(ranks)
        state.history.append(metrics)
        is_best = self.schedule.keep == "last" or metrics["rsum"] > state.best_rsum
        if state.epoch >= self.first_best and is_best:
            state.best_rsum, state.best_epoch = metrics["rsum"], state.epoch
            state.best_files = self._checkpoints.write_best(state.epoch, partial(self.write_best, ranks))
        self.append({f"dev_{name}": value for name, value in metrics.items()})
        logger.info("epoch %d: dev rsum %.1f", state.epoch + 1, metrics["rsum"])

    def write_best(self, ranks: Ranks, folder: Path) -> None:
        for model, name in zip(self.evaluated, self.weights, strict=True):
            save_model(folder / name, merged_weights(model), self.description)
        write_ranks(folder / DEV_RANKS, ranks)

    def end_epoch(self) -> None:
        self.state.epoch, self.state.step = self.state.epoch + 1, 0

    def checkpoint(self) -> None:
        if not self.run.processes.leads:
            return
        self.state.metrics_position, self.state.metrics_sha256 = self._log.position, self._log.sha256()
        cuda = {"cuda": torch.cuda.get_rng_state(self.run.device)} if self.run.device.type == "cuda" else {}
        self._checkpoints.save({**self._content(), "random": {"cpu": torch.get_rng_state(), **cuda}})

    def _content(self) -> dict[str, Any]:
        parts = {name: [part.state_dict() for part in parts] for name, parts in self._parts.items()}
        return {"state": vars(self.state), **parts, **self.content()}

    @property
    def _parts(self) -> dict[str, Sequence[Any]]:
        learnt = [] if self.learnt is None else [self.learnt]
        return {"models": self.models, "optimizers": self.optimizers, "averages": self.averages, "learnt": learnt}

    def _start(self) -> None:
        """Start from the last intact checkpoint, or from fresh weights; all processes start as the leader does."""
        processes, device = self.run.processes, self.run.device
        content = self._checkpoints.load() if processes.leads else None
        if content is not None and not {*self._parts} <= {*content}:
            logger.info("the checkpoint was written by an older version; starting over")
            content = None
        if processes.are_several:
            start = pack_state(content or self._content()) if processes.leads else b""
            content = unpack_state(processes.from_leader(start))
        if content is not None:
            self.restore(content)
            for name, parts in self._parts.items():
                for part, own_state in zip(parts, content[name], strict=True):
                    part.load_state_dict(own_state)
            self.state = State(**content["state"])
            if processes.leads and (random := content.get("random")):  # of a checkpoint
                torch.set_rng_state(random["cpu"])
                if device.type == "cuda" and "cuda" in random:
                    torch.cuda.set_rng_state(random["cuda"], device)
                logger.info("resuming at epoch %d, step %d", self.state.epoch + 1, self.state.step)
        if processes.leads:
            self._checkpoints.drop_others(self.state.best_epoch)
            self._log.rewind(self.state.metrics_position)

    def notes(self) -> dict[str, Any]:
        """Publish the best epoch's files, and return the training's notes for the manifest.

        The state stays until the artefact is published: a run that is killed before then repeats no step.
        """
        state, final, hashes = self.state, self.run.work / UNITS / "final.safetensors", []
        for model in self.models:
            save_model(final, merged_weights(model), self.description)
            hashes.append(file_sha256(final))
        self._checkpoints.publish_best(vars(state), self.run.work)
        by_epoch = {"hardness_by_epoch": state.hardness, "learnt_by_epoch": state.learnt}
        return {
            "metrics": state.history[state.best_epoch],
            "best_epoch": state.best_epoch,
            "dev_rsum_by_epoch": [round(metrics["rsum"], 3) for metrics in state.history],
            "steps": state.taken,
            "training_seconds_this_run": round(time.perf_counter() - self._started, 1),
            "final_weights_sha256": hashes,
            "device": str(self.run.device),
            "threads": torch.get_num_threads(),
            "processes": self.run.processes.count,
            **{name: values for name, values in by_epoch.items() if values},
        }
