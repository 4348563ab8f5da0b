"""The training loop of both rounds: resumable at any step, the same result to the bit."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int32

from aoq.models.base import MatchingModel
from aoq.pipeline.artifact import file_sha256
from aoq.pipeline.config.losses import Loss, online_version
from aoq.pipeline.config.training import Training
from aoq.pipeline.data.batches import PairData, epoch_order, step_rng, steps_per_epoch
from aoq.pipeline.losses import plateau
from aoq.pipeline.training.checkpoint import load_state, read_weights, save_model, save_state
from aoq.pipeline.training.collapse import CollapseDetector
from aoq.pipeline.training.constraints import constrained
from aoq.pipeline.training.metrics import MetricsLog, Window
from aoq.pipeline.training.sampler import Sampler
from aoq.pipeline.training.schedule import epoch_loss, learning_rate
from aoq.pipeline.training.step import Objective, draw_batch, make_objective, read_batch, take_step

logger = logging.getLogger(__name__)

LOG_STEPS = 50
READY = 1.0
"""The protected start-up ends after the epoch in whose last steps the hardest negatives cost less, in margins: from
there, finding all pairs alike is uphill."""
LAST_STEPS = 50
"""So many; of whole batches, for a small one has easier negatives."""


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
    """Steps taken in this epoch."""
    protected_epochs: int = 0
    ready: bool = True
    """Whether the protected start-up is over, and how many epochs it took."""
    hardest: list[float] = field(default_factory=list)
    """In the start-up: what the batch's hardest negatives cost in this epoch's last steps."""
    best_rsum: float = -math.inf
    best_epoch: int = -1
    metrics_position: int = 0
    history: list[dict[str, float]] = field(default_factory=list)


def train(
    model: MatchingModel,
    description: Mapping[str, Any],
    pairs: PairData,
    sampler: Sampler | None,
    training: Training,
    validate: Callable[[MatchingModel], Mapping[str, float]],
    *,
    seed: int,
    run: Run,
) -> dict[str, Any]:
    """Train `model` in place, write `model.safetensors` (best dev rsum) and `metrics.jsonl` into `run.work`.

    Returns what the manifest should say. A killed run continues from its last checkpoint to the same weights.
    """
    model.to(run.device)
    trainer = _Trainer(model, pairs, sampler, training, seed, run)
    trainer.resume()
    started = time.perf_counter()
    state = trainer.state
    while state.epoch < training.epochs:
        trainer.train_epoch()
        metrics = dict(validate(model))
        state.history.append(metrics)
        if metrics["rsum"] > state.best_rsum:
            state.best_rsum, state.best_epoch = metrics["rsum"], state.epoch
            save_model(run.work / "model.safetensors", model.state_dict(), description)
        trainer.finish_epoch(metrics)
    if training.start_up and state.protected_epochs + len(training.warmup) >= training.epochs:
        logger.warning(
            "the protected start-up lasted %d of %d epochs, and nothing was trained on %s; give it more epochs, a "
            "larger learning rate, or a smaller batch, whose hardest negatives are easier",
            state.protected_epochs,
            training.epochs,
            training.loss.name,
        )
    return {
        "metrics": state.history[state.best_epoch],
        "best_epoch": state.best_epoch,
        "dev_rsum_by_epoch": [round(metrics["rsum"], 3) for metrics in state.history],
        "steps": training.epochs * trainer.steps,
        **({"protected_epochs": state.protected_epochs} if training.start_up else {}),
        "training_seconds_this_run": round(time.perf_counter() - started, 1),
        "final_weights_sha256": trainer.close(description),
        "device": str(run.device),
        "threads": torch.get_num_threads(),
    }


class _Trainer:
    """A model with its optimizer, log and place in the schedule."""

    def __init__(
        self,
        model: MatchingModel,
        pairs: PairData,
        sampler: Sampler | None,
        training: Training,
        seed: int,
        run: Run,
    ) -> None:
        self._model, self._pairs, self._sampler, self._training = model, pairs, sampler, training
        self._seed, self._run = seed, run
        self._parameters = list(model.parameters())
        self._optimizer = torch.optim.Adam(self._parameters, lr=training.learning_rate)
        self._log = MetricsLog(run.work / "metrics.jsonl", run.work / "tensorboard" if run.tensorboard else None)
        self._collapse = CollapseDetector()
        self.state = State(ready=training.start_up is None)
        self.steps = steps_per_epoch(pairs.split.caption_count, training.batch_size)

    def train_epoch(self) -> None:
        """The rest of the epoch the state stands in."""
        state, training = self.state, self._training
        loss = epoch_loss(training, state.epoch - state.protected_epochs if state.ready else None)
        objective = make_objective(loss)
        if objective.kind.offline != "none" and self._sampler is None:
            raise ValueError(f"loss {loss.name!r} draws from a negative table, and there is none")
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate(training, state.epoch)
        order = epoch_order(self._pairs.split.caption_count, seed=self._seed, epoch=state.epoch)
        self._model.train()
        if state.step == 0:  # a resumed epoch has begun before
            self._model.begin_epoch(state.epoch, training.epochs)
        window = Window()
        while state.step < self.steps:
            captions = order[state.step * training.batch_size :][: training.batch_size]
            window.add(self._step(objective, captions))
            state.step += 1
            if self._done % LOG_STEPS == 0 or state.step == self.steps:
                self._record(loss, window)
                window = Window()
                if self._done % self._run.checkpoint_steps < LOG_STEPS and state.step < self.steps:
                    self._checkpoint()
        if not state.ready:
            self._end_protected_epoch()

    def _end_protected_epoch(self) -> None:
        state, margin = self.state, online_version(self._training.loss).margin
        hardest, state.hardest = float(np.mean(state.hardest)), []
        state.protected_epochs += 1
        state.ready = hardest < READY * margin
        logger.info(
            "start-up, epoch %d: a batch's hardest negatives cost %.3f, and %.3f where all pairs are found alike; %s",
            state.epoch + 1,
            hardest,
            margin,
            "the schedule begins" if state.ready else "on every negative until they cost less",
        )

    def _step(self, objective: Objective, captions: Int32[np.ndarray, " batch"]) -> dict[str, float]:
        rng = step_rng(seed=self._seed, epoch=self.state.epoch, step=self.state.step)
        before = self.state.protected_epochs + len(self._training.warmup)  # epochs that draw nothing
        drawn = draw_batch(self._pairs, self._sampler, objective, captions, rng, self.state.epoch - before)
        batch = read_batch(self._pairs, drawn).to(self._run.device)
        objective = constrained(objective, self._training.constraints, rng)
        figures = take_step(
            self._model, self._optimizer, self._parameters, batch, objective, self._training.gradient_clip
        )
        size = len(batch.image_rows)
        if not self.state.ready and size == min(self._training.batch_size, self._pairs.split.caption_count):
            self.state.hardest = [*self.state.hardest, figures["hardest"]][-LAST_STEPS:]
        return {**figures, "collision_rate": drawn.collision_rate, "plateau": plateau(objective.loss, size)}

    def _record(self, loss: Loss, window: Window) -> None:
        """One line of figures; not finite is an error, and a plateau is noticed."""
        line = window.means()
        if not math.isfinite(line["loss"]):
            raise ValueError(
                f"the loss of epoch {self.state.epoch}, step {self.state.step} is {line['loss']}; check the features "
                "with `aoq data check`, then try a lower learning rate."
            )
        collapsed = self._collapse.observe(
            loss.name, line["retrieval_loss"], line["plateau"], gap=line["positive_gap"], steps=window.steps
        )
        about = {"epoch": self.state.epoch, "loss_name": loss.name, "collapsed": collapsed}
        rate = learning_rate(self._training, self.state.epoch)
        speed = round(window.steps_per_second, 3)
        self._log.append(self._done, {**about, "learning_rate": rate, **line, "steps_per_second": speed})
        text = f"epoch {self.state.epoch + 1}/{self._training.epochs} {loss.name} loss {line['loss']:.2f}"
        self._run.progress(self._done, self._training.epochs * self.steps, text)

    def finish_epoch(self, metrics: Mapping[str, float]) -> None:
        state = self.state
        self._log.append(self._done, {"epoch": state.epoch, **{f"dev_{name}": v for name, v in metrics.items()}})
        logger.info("epoch %d: dev rsum %.1f", state.epoch + 1, metrics["rsum"])
        state.epoch, state.step = state.epoch + 1, 0
        self._checkpoint()

    @property
    def _done(self) -> int:
        return self.state.epoch * self.steps + self.state.step

    def _checkpoint(self) -> None:
        self.state.metrics_position = self._log.position
        random = {"cpu": torch.get_rng_state()}
        if self._run.device.type == "cuda":
            random["cuda"] = torch.cuda.get_rng_state(self._run.device)
        weights, moments = self._model.state_dict(), self._optimizer.state_dict()
        content = {
            "state": vars(self.state),
            "collapse": vars(self._collapse),
            "model": weights,
            "optimizer": moments,
            "random": random,
        }
        save_state(self._run.work / "last.ckpt", content)

    def resume(self) -> None:
        """Stand where the last checkpoint stood, if there is one."""
        path = self._run.work / "last.ckpt"
        if path.is_file():
            content = load_state(path)
            self._model.load_state_dict(content["model"])
            self._optimizer.load_state_dict(content["optimizer"])
            torch.set_rng_state(content["random"]["cpu"])
            if self._run.device.type == "cuda" and "cuda" in content["random"]:
                torch.cuda.set_rng_state(content["random"]["cuda"], self._run.device)
            self.state, self._collapse = State(**content["state"]), CollapseDetector(**content["collapse"])
            if self.state.best_epoch >= 0:
                read_weights(self._run.work / "model.safetensors")  # raises if the best so far was damaged
            logger.info("resuming at epoch %d, step %d", self.state.epoch + 1, self.state.step)
        self._log.rewind(self.state.metrics_position)

    def close(self, description: Mapping[str, Any]) -> str:
        """Drop what only a resumed run needs; the sha256 of the final weights tells two trainings apart."""
        self._log.close()
        final = self._run.work / "final.safetensors"
        save_model(final, self._model.state_dict(), description)
        sha256 = file_sha256(final)
        final.unlink()
        (self._run.work / "last.ckpt").unlink(missing_ok=True)
        return sha256
