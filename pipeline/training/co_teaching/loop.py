"""Warm-up, then co-teaching, epoch by epoch: an epoch is one of each network, in turn."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float32

from aoq.models.base import MatchingModel
from aoq.pipeline.config.co_teaching import CoTeaching, plain_training
from aoq.pipeline.data.batches import PairData, steps_per_epoch
from aoq.pipeline.data.clean_pairs import CLEAN_PAIRS, write_clean_pairs
from aoq.pipeline.training.co_teaching.division import (
    Epoch,
    clean_probabilities,
    even_batches,
    scikit_learn,
    selected_clean,
)
from aoq.pipeline.training.co_teaching.step import Network
from aoq.pipeline.training.collapse import on_plateau
from aoq.pipeline.training.metrics import Window
from aoq.pipeline.training.resumable import Resumable, Run, State, Validate
from aoq.pipeline.training.schedule import learning_rate

logger = logging.getLogger(__name__)

FILES = ("model.safetensors", "peer.safetensors")
"""The weights of the two networks."""
JUDGING = 2
"""In place of a network's number, in what is random about judging pairs."""
Pair = tuple[MatchingModel, MatchingModel]


@dataclass
class PairState(State):
    """Epochs of the warm-up count with the others."""

    network: int = 0
    """Which of the two trains."""
    taken: int = 0
    """Steps of both in all."""


def co_teach(
    models: Pair,
    description: Mapping[str, Any],
    pairs: PairData,
    section: CoTeaching,
    validate: Validate,
    *,
    seed: int,
    run: Run,
) -> dict[str, Any]:
    """Train both in place; write their best weights (dev rsum of their mean), and each pair's probability to be right.

    Returns what the manifest should say. Only epochs of co-teaching can be the best one. A killed run continues from
    its last checkpoint to the same weights.
    """
    scikit_learn()  # where it is missing, say so before the warm-up
    return _CoTeaching(models, description, pairs, section, seed, run).train(validate)


class _CoTeaching(Resumable):
    state: PairState
    weights = FILES

    def __init__(
        self, models: Pair, description: Mapping[str, Any], pairs: PairData, section: CoTeaching, seed: int, run: Run
    ) -> None:
        self._schedule = plain_training(section)
        super().__init__(models, description, self._schedule.epochs, section.learning_rate, run)
        self._networks = [
            Network(model, optimizer, section, run.device)
            for model, optimizer in zip(self.models, self.optimizers, strict=True)
        ]
        self._pairs, self._section, self._seed = pairs, section, seed
        self.state = PairState()
        self.probabilities: Float32[np.ndarray, "networks pairs"] | None = None
        """That each pair is right, to each network, in this epoch; None in the warm-up."""

    @property
    def taken(self) -> int:
        return self.state.taken

    @property
    def can_be_best(self) -> bool:
        return self.probabilities is not None

    def keep_best(self) -> None:
        super().keep_best()
        assert self.probabilities is not None  # else it cannot be the best
        write_clean_pairs(self.run.work / CLEAN_PAIRS, self.probabilities.mean(axis=0))

    def kept(self) -> dict[str, Any]:
        return {
            "models": [model.state_dict() for model in self.models],
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "probabilities": None if self.probabilities is None else torch.from_numpy(self.probabilities),
        }

    def restore(self, kept: Mapping[str, Any]) -> None:
        for network, weights, moments in zip(self._networks, kept["models"], kept["optimizers"], strict=True):
            network.model.load_state_dict(weights)
            network.optimizer.load_state_dict(moments)
        self.probabilities = None if kept["probabilities"] is None else kept["probabilities"].numpy()

    def train_epoch(self) -> None:
        """The rest of the epoch the state stands in: first one network's, then the other's."""
        state = self.state
        if state.epoch >= self._section.warmup_epochs and self.probabilities is None:
            self.probabilities = self._judge()
            self.checkpoint()
        while state.network < len(self._networks):
            self._train_network(self._seen())
            state.network, state.step = state.network + 1, 0
            self.checkpoint()

    def end_epoch(self) -> None:
        super().end_epoch()
        self.state.network, self.probabilities = 0, None

    def _judge(self) -> Float32[np.ndarray, "networks pairs"]:
        """How probably each pair is right, to each network as it stands."""
        count, epoch = self._pairs.split.caption_count, self.state.epoch
        losses = np.empty((len(self._networks), count), dtype=np.float32)
        for rows in even_batches(count, self._section.batch_size, (self._seed, epoch, JUDGING)):
            for of_network, network in zip(losses, self._networks, strict=True):
                of_network[rows] = network.losses(network.read(self._pairs, rows)).float().cpu().numpy()
        self.check_finite(losses)
        found = np.stack([clean_probabilities(of_network, seed=self._seed) for of_network in losses])
        shares = [selected_clean(one, threshold=self._section.threshold).mean() for one in found]
        logger.info(
            "epoch %d: %.1f %% and %.1f %% of the pairs selected as clean", epoch + 1, *(100 * s for s in shares)
        )
        self.append({"held_clean": [round(float(share), 6) for share in shares]})
        return found

    def _seen(self) -> Epoch:
        """What this network sees: all pairs in the warm-up, then those that the other one selects as clean."""
        state, section = self.state, self._section
        is_clean: Bool[np.ndarray, " pairs"] = np.ones(self._pairs.split.caption_count, dtype=np.bool_)
        if self.probabilities is not None:
            is_clean = selected_clean(self.probabilities[1 - state.network], threshold=section.threshold)
        return Epoch.of(is_clean, section.batch_size, (self._seed, state.epoch, state.network))

    def _train_network(self, seen: Epoch) -> None:
        state = self.state
        self.begin_epoch(state.network, learning_rate(self._schedule, state.epoch))
        if seen.steps == 0:
            logger.warning(
                "epoch %d: network %d learns nothing, since the other one selects no two pairs as clean; lower the "
                "threshold, or the learning rate",
                state.epoch + 1,
                state.network + 1,
            )
        self.take_steps(seen.steps, lambda: self._step(seen), lambda window: self._record(seen, window))

    def _step(self, seen: Epoch) -> dict[str, float]:
        state, section = self.state, self._section
        network, peer = self._networks[state.network], self._networks[1 - state.network]
        rows = seen.clean_batch(state.step)
        batch = network.read(self._pairs, rows)
        state.taken += 1
        if self.probabilities is None:
            return network.warm_up(batch)
        trusted = torch.from_numpy(self.probabilities[1 - state.network][rows]).to(self.run.device)
        is_rectified = state.epoch - section.warmup_epochs >= section.first_rectified
        noisy = seen.noisy_batch(state.step) if is_rectified else None
        if noisy is None:
            return _with_plateau(network.learn_clean(batch, trusted), len(rows))
        doubtful = network.read(self._pairs, noisy)
        labels = (network.labels(doubtful) + peer.labels(doubtful)) / 2  # before either step, as are all labels
        figures = _with_plateau(network.learn_clean(batch, trusted), len(rows))
        return {**figures, "noisy_loss": network.learn_noisy(doubtful, labels), "noisy_label": float(labels.mean())}

    def _record(self, seen: Epoch, window: Window) -> None:
        """One line of figures; not finite is an error, and a plateau at the end of a network's epoch is noticed."""
        state, line = self.state, window.means()
        self.check_finite(np.array([line["loss"], line.get("noisy_loss", 0.0)]))
        name = "warmup" if self.probabilities is None else "co_teaching"
        about = {"network": state.network, "loss_name": name}
        self.append_window(window, about, learning_rate(self._schedule, state.epoch))
        most = steps_per_epoch(self._pairs.split.caption_count, self._section.batch_size)
        done = (2 * state.epoch + state.network) * most + state.step
        text = f"epoch {state.epoch + 1}/{self.epochs} {name} loss {line['loss']:.2f}"
        self.run.progress(done, 2 * self.epochs * most, text)
        if state.step == seen.steps and "plateau" in line:
            self._notice_plateau(line)

    def _notice_plateau(self, line: Mapping[str, float]) -> None:
        if on_plateau(line["retrieval_loss"], line["plateau"], gap=line["positive_gap"]):
            logger.warning(
                "epoch %d: network %d has collapsed: all pairs are equally similar (loss %.1f, plateau %.1f), and "
                "the hardest negatives of its batches cost more than that. Try a smaller batch_size, whose hardest "
                "negatives are easier, or more warmup_epochs.",
                self.state.epoch + 1,
                self.state.network + 1,
                line["retrieval_loss"],
                line["plateau"],
            )


def _with_plateau(figures: dict[str, float], batch: int) -> dict[str, float]:
    """The figures, and the batch's loss where all pairs are equally similar: each pair's margin, in both directions.

    With `soft_labels = "broadcast"` about that.
    """
    return {**figures, "plateau": 2 * batch * figures["margin"]}
