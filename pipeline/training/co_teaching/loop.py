"""Warm-up, then co-teaching, epoch by epoch; resumable at any step, the same result to the bit."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32

from aoq.models.base import MatchingModel
from aoq.pipeline.artifact import file_sha256
from aoq.pipeline.config.co_teaching import CoTeaching, plain_training
from aoq.pipeline.data.batches import PairData, steps_per_epoch
from aoq.pipeline.data.clean_pairs import CLEAN_PAIRS, write_clean_pairs
from aoq.pipeline.training.checkpoint import load_state, read_weights, save_model, save_state
from aoq.pipeline.training.co_teaching.batches import Epoch, even_batches
from aoq.pipeline.training.co_teaching.divide import clean_probabilities, held_clean, scikit_learn
from aoq.pipeline.training.co_teaching.step import Network
from aoq.pipeline.training.collapse import on_plateau
from aoq.pipeline.training.loop import LOG_STEPS, Run
from aoq.pipeline.training.metrics import MetricsLog, Window
from aoq.pipeline.training.schedule import learning_rate

logger = logging.getLogger(__name__)

FILES = ("model.safetensors", "peer.safetensors")
"""The weights of the two networks."""
JUDGING = 2
"""In place of a network's number, in what is random about judging pairs."""
Pair = tuple[MatchingModel, MatchingModel]


@dataclass
class State:
    """Where a training stands; epochs of the warm-up count with the others."""

    epoch: int = 0
    network: int = 0
    """Which of the two trains."""
    step: int = 0
    """Steps it has taken in this epoch."""
    taken: int = 0
    """Steps of both in all."""
    best_rsum: float = -math.inf
    best_epoch: int = -1
    metrics_position: int = 0
    history: list[dict[str, float]] = field(default_factory=list)


def co_teach(
    models: Pair,
    description: Mapping[str, Any],
    pairs: PairData,
    section: CoTeaching,
    validate: Callable[[Sequence[MatchingModel]], Mapping[str, float]],
    *,
    seed: int,
    run: Run,
) -> dict[str, Any]:
    """Train both in place; write their best weights (dev rsum of their mean), and what they hold clean of the pairs.

    Returns what the manifest should say. Only epochs of co-teaching can be the best one. A killed run continues from
    its last checkpoint to the same weights.
    """
    scikit_learn()  # where it is missing, say so before the warm-up
    teaching = _CoTeaching(models, pairs, section, seed, run)
    teaching.resume()
    started, state = time.perf_counter(), teaching.state
    while state.epoch < teaching.epochs:
        teaching.train_epoch()
        metrics = dict(validate(models))
        state.history.append(metrics)
        if teaching.probabilities is not None and metrics["rsum"] > state.best_rsum:
            state.best_rsum, state.best_epoch = metrics["rsum"], state.epoch
            for model, name in zip(models, FILES, strict=True):
                save_model(run.work / name, model.state_dict(), description)
            write_clean_pairs(run.work / CLEAN_PAIRS, teaching.probabilities.mean(axis=0))
        teaching.finish_epoch(metrics)
    return {
        "metrics": state.history[state.best_epoch],
        "best_epoch": state.best_epoch,
        "dev_rsum_by_epoch": [round(metrics["rsum"], 3) for metrics in state.history],
        "steps": state.taken,
        "training_seconds_this_run": round(time.perf_counter() - started, 1),
        "final_weights_sha256": teaching.close(description),
        "device": str(run.device),
        "threads": torch.get_num_threads(),
    }


class _CoTeaching:
    """Both networks with their log and place in the schedule."""

    def __init__(self, models: Pair, pairs: PairData, section: CoTeaching, seed: int, run: Run) -> None:
        self._networks = [self._network(model, section, run) for model in models]
        self._pairs, self._section, self._seed, self._run = pairs, section, seed, run
        self._schedule = plain_training(section)
        self._log = MetricsLog(run.work / "metrics.jsonl", run.work / "tensorboard" if run.tensorboard else None)
        self._checkpointed = 0
        self.state = State()
        self.epochs = self._schedule.epochs
        self.probabilities: Float32[np.ndarray, "networks pairs"] | None = None
        """That each pair is right, to each network, in this epoch; None in the warm-up."""

    @staticmethod
    def _network(model: MatchingModel, section: CoTeaching, run: Run) -> Network:
        model.to(run.device)
        return Network(model, torch.optim.Adam(model.parameters(), lr=section.learning_rate), section, run.device)

    def train_epoch(self) -> None:
        """The rest of the epoch the state stands in: first one network's, then the other's."""
        state = self.state
        if state.epoch >= self._section.warmup_epochs and self.probabilities is None:
            self.probabilities = self._judge()
            self._checkpoint()
        while state.network < len(self._networks):
            self._train_network(self._plan())
            state.network, state.step = state.network + 1, 0
            self._checkpoint()

    def _judge(self) -> Float32[np.ndarray, "networks pairs"]:
        """How probably each pair is right, to each network as it stands."""
        count, epoch = self._pairs.split.caption_count, self.state.epoch
        losses = np.empty((len(self._networks), count), dtype=np.float32)
        for rows in even_batches(count, self._section.batch_size, (self._seed, epoch, JUDGING)):
            for of_network, network in zip(losses, self._networks, strict=True):
                of_network[rows] = network.losses(network.read(self._pairs, rows)).float().cpu().numpy()
        _check_finite(losses, epoch)
        found = np.stack([clean_probabilities(of_network, seed=self._seed) for of_network in losses])
        shares = [held_clean(one, threshold=self._section.threshold).mean() for one in found]
        logger.info("epoch %d: %.1f %% and %.1f %% of the pairs held clean", epoch + 1, *(100 * s for s in shares))
        self._log.append(self.state.taken, {"epoch": epoch, "held_clean": [round(float(s), 6) for s in shares]})
        return found

    def _plan(self) -> Epoch:
        """What this network sees: all pairs in the warm-up, then those that the other one holds clean."""
        state, section = self.state, self._section
        is_clean: Bool[np.ndarray, " pairs"] = np.ones(self._pairs.split.caption_count, dtype=np.bool_)
        if self.probabilities is not None:
            is_clean = held_clean(self.probabilities[1 - state.network], threshold=section.threshold)
        return Epoch.of(is_clean, section.batch_size, (self._seed, state.epoch, state.network))

    def _train_network(self, plan: Epoch) -> None:
        state, network = self.state, self._networks[self.state.network]
        for group in network.optimizer.param_groups:
            group["lr"] = learning_rate(self._schedule, state.epoch)
        if state.step == 0:  # a resumed epoch has begun before
            network.model.begin_epoch(state.epoch, self.epochs)
        if plan.steps == 0:
            logger.warning(
                "epoch %d: network %d learns nothing, since the other one holds no two pairs clean; lower the "
                "threshold, or the learning rate",
                state.epoch + 1,
                state.network + 1,
            )
        window = Window()
        while state.step < plan.steps:
            window.add(self._step(plan))
            state.step, state.taken = state.step + 1, state.taken + 1
            if state.step % LOG_STEPS == 0 or state.step == plan.steps:
                line = self._record(window)
                window = Window()
                if state.step == plan.steps:
                    self._notice_plateau(line)
                if state.taken - self._checkpointed >= self._run.checkpoint_steps:
                    self._checkpoint()

    def _step(self, plan: Epoch) -> dict[str, float]:
        state, section = self.state, self._section
        network, peer = self._networks[state.network], self._networks[1 - state.network]
        rows = plan.clean_batch(state.step)
        batch = network.read(self._pairs, rows)
        if self.probabilities is None:
            return network.warm_up(batch)
        trusted = torch.from_numpy(self.probabilities[1 - state.network][rows]).to(self._run.device)
        is_rectified = state.epoch - section.warmup_epochs >= section.first_rectified
        noisy = plan.noisy_batch(state.step) if is_rectified else None
        if noisy is None:
            return self._with_plateau(network.learn_clean(batch, trusted), len(rows))
        doubtful = network.read(self._pairs, noisy)
        labels = (network.labels(doubtful) + peer.labels(doubtful)) / 2  # before either step, as are all labels
        figures = self._with_plateau(network.learn_clean(batch, trusted), len(rows))
        return {**figures, "noisy_loss": network.learn_noisy(doubtful, labels), "noisy_label": float(labels.mean())}

    @staticmethod
    def _with_plateau(figures: dict[str, float], batch: int) -> dict[str, float]:
        """And what the batch would cost a network that finds all pairs alike: each pair's margin, in both directions.

        With `soft_labels = "broadcast"` about that.
        """
        return {**figures, "plateau": 2 * batch * figures["margin"]}

    def _notice_plateau(self, line: Mapping[str, float]) -> None:
        """At the end of a network's epoch of co-teaching, by its last steps."""
        if "plateau" in line and on_plateau(line["retrieval_loss"], line["plateau"], gap=line["positive_gap"]):
            logger.warning(
                "epoch %d: network %d finds all pairs alike (loss %.1f, plateau %.1f): the hardest negatives of its "
                "batches cost more than that. Try a smaller batch_size, whose hardest negatives are easier, or more "
                "warmup_epochs.",
                self.state.epoch + 1,
                self.state.network + 1,
                line["retrieval_loss"],
                line["plateau"],
            )

    def _record(self, window: Window) -> dict[str, float]:
        """One line of figures; not finite is an error."""
        state, line = self.state, window.means()
        _check_finite(np.array([line["loss"], line.get("noisy_loss", 0.0)]), state.epoch)
        name = "warmup" if self.probabilities is None else "co_teaching"
        about = {"epoch": state.epoch, "network": state.network, "loss_name": name}
        rate, speed = learning_rate(self._schedule, state.epoch), round(window.steps_per_second, 3)
        self._log.append(state.taken, {**about, "learning_rate": rate, **line, "steps_per_second": speed})
        most = steps_per_epoch(self._pairs.split.caption_count, self._section.batch_size)
        done = (2 * state.epoch + state.network) * most + state.step
        text = f"epoch {state.epoch + 1}/{self.epochs} {name} loss {line['loss']:.2f}"
        self._run.progress(done, 2 * self.epochs * most, text)
        return line

    def finish_epoch(self, metrics: Mapping[str, float]) -> None:
        state = self.state
        self._log.append(state.taken, {"epoch": state.epoch, **{f"dev_{name}": v for name, v in metrics.items()}})
        logger.info("epoch %d: dev rsum %.1f", state.epoch + 1, metrics["rsum"])
        state.epoch, state.network, state.step = state.epoch + 1, 0, 0
        self.probabilities = None
        self._checkpoint()

    def _checkpoint(self) -> None:
        state, run = self.state, self._run
        state.metrics_position, self._checkpointed = self._log.position, state.taken
        random = {"cpu": torch.get_rng_state()}
        if run.device.type == "cuda":
            random["cuda"] = torch.cuda.get_rng_state(run.device)
        content = {
            "state": vars(state),
            "models": [network.model.state_dict() for network in self._networks],
            "optimizers": [network.optimizer.state_dict() for network in self._networks],
            "probabilities": None if self.probabilities is None else torch.from_numpy(self.probabilities),
            "random": random,
        }
        save_state(run.work / "last.ckpt", content)

    def resume(self) -> None:
        """Stand where the last checkpoint stood, if there is one."""
        path, run = self._run.work / "last.ckpt", self._run
        if path.is_file():
            content = load_state(path)
            for network, weights, moments in zip(self._networks, content["models"], content["optimizers"], strict=True):
                network.model.load_state_dict(weights)
                network.optimizer.load_state_dict(moments)
            kept = content["probabilities"]
            self.probabilities = None if kept is None else kept.numpy()
            torch.set_rng_state(content["random"]["cpu"])
            if run.device.type == "cuda" and "cuda" in content["random"]:
                torch.cuda.set_rng_state(content["random"]["cuda"], run.device)
            self.state = State(**content["state"])
            self._checkpointed = self.state.taken
            if self.state.best_epoch >= 0:
                for name in FILES:
                    read_weights(run.work / name)  # raises if the best so far was damaged
            logger.info("resuming at epoch %d, step %d", self.state.epoch + 1, self.state.step)
        self._log.rewind(self.state.metrics_position)

    def close(self, description: Mapping[str, Any]) -> list[str]:
        """Drop what only a resumed run needs; the sha256 of the final weights tell two trainings apart."""
        self._log.close()
        found, final = [], self._run.work / "final.safetensors"
        for network in self._networks:
            save_model(final, network.model.state_dict(), description)
            found.append(file_sha256(final))
        final.unlink()
        (self._run.work / "last.ckpt").unlink(missing_ok=True)
        return found


def _check_finite(losses: Float[np.ndarray, "*shape"], epoch: int) -> None:
    if not np.isfinite(losses).all():
        raise ValueError(
            f"a loss of epoch {epoch} is not finite; check the features with `aoq data check`, then try a lower "
            "learning rate."
        )
