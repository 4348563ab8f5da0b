"""Warm-up, then co-teaching: an epoch trains one network, then the other."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float32

from aoq.pipeline.config.training import CoTeaching, Training, plain_training
from aoq.pipeline.data.clean_pairs import CLEAN_PAIRS, write_clean_pairs
from aoq.pipeline.losses.pace import Pace
from aoq.pipeline.training.co_teaching.division import (
    Batches,
    Rows,
    clean_probabilities,
    even_batches,
    scikit_learn,
    selected_clean,
)
from aoq.pipeline.training.co_teaching.step import Network, read_pairs
from aoq.pipeline.training.collapse import on_plateau
from aoq.pipeline.training.parts import Cut
from aoq.pipeline.training.resumable import Resumable, Validate
from aoq.pipeline.training.run import State
from aoq.pipeline.training.step import Batch
from aoq.pipeline.training.window import Figure

logger = logging.getLogger(__name__)

FILES = ("model.safetensors", "peer.safetensors")
"""The weights of the two networks."""
JUDGING = 2
"""Stands for a network's number in the random key of judging pairs."""


class Read(NamedTuple):
    """Input of a step: rows of pairs, their batch, and a batch of others that are flagged as noisy."""

    rows: Rows
    batch: Batch
    doubtful: Batch | None


@dataclass
class PairState(State):
    """Position of a co-training; its epochs include the warm-up's."""

    network: int = 0
    """Number of the network in training."""
    taken: int = 0
    """Number of steps of both networks in all."""
    hardness: list[list[float]] = field(default_factory=list)
    """Hardness of each network's online negatives after each epoch, from 0 to 1."""


@dataclass(kw_only=True, eq=False, repr=False)
class CoTrainer(Resumable):
    """Trains two networks. The best epoch is one of co-teaching, by their mean; each pair's probability is kept too."""

    section: CoTeaching
    schedule: Training = field(init=False)
    state: PairState = field(default_factory=PairState)
    probabilities: Float32[np.ndarray, "networks pairs"] | None = None
    """Probability that each pair is right, by each network, in this epoch; None in the warm-up."""
    weights = FILES

    def __post_init__(self) -> None:
        scikit_learn()  # where it is missing, say so before the warm-up
        self.schedule = plain_training(self.section)
        self.cut = Cut(processes=self.run.processes)
        self.cut.check(self.models[0], gradient_checkpointing=bool(self.section.gradient_checkpointing))
        super().__post_init__()
        self._networks = [
            Network(
                model,
                optimizer,
                self.section,
                self.run.device,
                self.section.start_up and Pace(self.section.margin),
                self.cut,
            )
            for model, optimizer in zip(self.computing, self.optimizers, strict=True)
        ]

    @property
    def taken(self) -> int:
        return self.state.taken

    @property
    def can_be_best(self) -> bool:
        return self.probabilities is not None

    def train(self, validate: Validate) -> dict[str, Any]:
        notes = super().train(validate)
        return {**notes, "hardness_by_epoch": self.state.hardness} if self.section.start_up else notes

    def keep_best(self, folder: Path) -> None:
        super().keep_best(folder)
        assert self.probabilities is not None  # else it cannot be the best
        write_clean_pairs(folder / CLEAN_PAIRS, self.probabilities.mean(axis=0))

    def kept(self) -> dict[str, Any]:
        return {
            "models": [model.state_dict() for model in self.models],
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "levels": [network.pace and float(network.pace.level) for network in self._networks],
            "probabilities": None if self.probabilities is None else torch.from_numpy(self.probabilities),
        }

    def restore(self, kept: Mapping[str, Any]) -> None:
        of_each = (kept[name] for name in ("models", "optimizers", "levels"))
        for model, network, weights, moments, level in zip(self.models, self._networks, *of_each, strict=True):
            model.load_state_dict(weights)
            network.optimizer.load_state_dict(moments)
            if network.pace is not None:
                network.pace.level = level
        self.probabilities = None if kept["probabilities"] is None else kept["probabilities"].numpy()

    def train_epoch(self) -> None:
        """Train the rest of the current epoch: first one network, then the other."""
        state = self.state
        if state.epoch >= self.section.warmup_epochs and self.probabilities is None:
            self.probabilities = self._judge()
            self.checkpoint()
        while state.network < len(self._networks):
            self._train_network()
            state.network, state.step = state.network + 1, 0
            self.checkpoint()
        if self.section.start_up is not None:
            self._say_hardness([network.pace for network in self._networks if network.pace is not None])

    def _say_hardness(self, paces: Sequence[Pace]) -> None:
        self.state.hardness.append([round(pace.share, 2) for pace in paces])
        if self.probabilities is not None:  # the warm-up is on all negatives
            said = " and ".join(f"{pace} (network {number})" for number, pace in enumerate(paces, start=1))
            logger.info("epoch %d: online negatives are %s", self.state.epoch + 1, said)

    def end_epoch(self) -> None:
        super().end_epoch()
        self.state.network, self.probabilities = 0, None

    def _judge(self) -> Float32[np.ndarray, "networks pairs"]:
        """Estimate the probability that each pair is right, by each network in its current state."""
        count, epoch = self.pairs.split.caption_count, self.state.epoch
        losses = np.empty((len(self._networks), count), dtype=np.float32)
        for rows in even_batches(count, self.section.batch_size, (self.seed, epoch, JUDGING)):
            for of_network, network in zip(losses, self._networks, strict=True):
                of_network[rows] = network.losses(network.read(self.pairs, rows)).float().cpu().numpy()
        self.check_finite(losses)
        found = np.stack([clean_probabilities(of_network, seed=self.seed) for of_network in losses])
        shares = [selected_clean(one, threshold=self.section.threshold).mean() for one in found]
        logger.info(
            "epoch %d: %.1f %% and %.1f %% of the pairs selected as clean", epoch + 1, *(100 * s for s in shares)
        )
        self.append({"selected_clean": [round(float(share), 6) for share in shares]})
        return found

    def _train_network(self) -> None:
        """Train on all pairs in the warm-up, later on those that the other network selects as clean and on the rest."""
        state, section, name = self.state, self.section, "warmup"
        is_clean: Bool[np.ndarray, " pairs"] = np.ones(self.pairs.split.caption_count, dtype=np.bool_)
        if self.probabilities is not None:
            name = "co_teaching"
            is_clean = selected_clean(self.probabilities[1 - state.network], threshold=section.threshold)
        clean, noisy = (
            Batches(np.flatnonzero(chosen), section.batch_size, (self.seed, state.epoch, state.network, kind))
            for kind, chosen in enumerate((is_clean, ~is_clean))
        )
        who = f"epoch {state.epoch + 1}: network {state.network + 1}"
        if clean.steps == 0:
            logger.warning(
                "%s learns nothing, since the other one selects no two pairs as clean; lower the threshold, or the "
                "learning rate",
                who,
            )
        steps = self.windows(state.network, clean.steps, partial(self._read, clean, noisy), self._step)
        with closing(steps) as windows:
            for window in windows:
                self.record(window, {"network": state.network, "loss_name": name}, state.network)
                line = window.means()
                if state.step < clean.steps or self.probabilities is None:
                    continue
                if on_plateau(line["retrieval_loss"], line["plateau"], gap=line["positive_gap"]):
                    self._say_collapsed(who, line)

    def _say_collapsed(self, who: str, line: Mapping[str, float]) -> None:
        start_up = "" if self.section.start_up else 'start_up = "auto", '
        logger.warning(
            "%s has collapsed: all pairs are equally similar (loss %.1f, plateau %.1f), and the hardest negatives of "
            "its batches cost more than that. Try %sa smaller batch_size, whose hardest negatives are easier, or more "
            "warmup_epochs.",
            who,
            line["retrieval_loss"],
            line["plateau"],
            start_up,
        )

    def _read(self, clean: Batches, noisy: Batches, step: int) -> Read:
        """Read a step's pairs, a function of the epoch's probabilities and of the step."""
        rows, doubtful = clean[step], None
        if self._is_rectified and noisy.steps:
            doubtful = self._pinned(read_pairs(self.seen, noisy[step], self.cut))
        return Read(rows, self._pinned(read_pairs(self.seen, rows, self.cut)), doubtful)

    def _pinned(self, batch: Batch) -> Batch:
        return batch.pin_memory() if self.run.device.type == "cuda" else batch

    @property
    def _is_rectified(self) -> bool:
        """True if pairs flagged as noisy train as well in this epoch."""
        since = self.state.epoch - self.section.warmup_epochs
        return self.probabilities is not None and since >= self.section.first_rectified

    def _step(self, read: Read) -> Mapping[str, Figure]:
        state, device = self.state, self.run.device
        network, peer = self._networks[state.network], self._networks[1 - state.network]
        batch = read.batch.to(device)
        state.taken += 1
        self._seed(batch)
        if self.probabilities is None:
            return network.warm_up(batch)
        trusted = torch.from_numpy(self.probabilities[1 - state.network][read.rows]).to(device, non_blocking=True)
        if read.doubtful is None:
            return network.learn_clean(batch, trusted)
        doubtful = read.doubtful.to(device)
        labels = (network.labels(doubtful) + peer.labels(doubtful)) / 2  # before either step, as are all labels
        figures = network.learn_clean(batch, trusted)
        self._seed(doubtful)
        return {**figures, "noisy_loss": network.learn_noisy(doubtful, labels), "noisy_label": labels.mean()}

    def _seed(self, batch: Batch) -> None:
        """Let each process draw its own numbers for its part; all the same for a batch that each computes."""
        size = len(batch.image_rows)
        self.run.processes.seed(self.seed, self.state.taken, size, self.cut.for_batch(size).processes.rank)
