"""NCR: two networks, each taught by the pairs that the other selects as clean (Huang et al., NeurIPS 2021).

After a warm-up, an epoch of co-teaching trains one network, then the other.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float32, Int64

from aoq.models.packing import sent
from aoq.pipeline.config.training import CoTeaching, Training, plain_training
from aoq.pipeline.data.noise import CLEAN_PAIRS, write_clean_pairs
from aoq.pipeline.evaluation.retrieval import Ranks
from aoq.pipeline.losses.pace import Pace
from aoq.pipeline.training import ncr
from aoq.pipeline.training.batches import Batch
from aoq.pipeline.training.loop import Loop
from aoq.pipeline.training.metrics import on_plateau
from aoq.pipeline.training.ncr import Network, PairBatches, random_order, read_matched, selected_clean
from aoq.pipeline.training.step import Figure

logger = logging.getLogger(__name__)

NETWORK_FILES = ("model.safetensors", "peer.safetensors")
"""The weights of the two networks."""
_JUDGING = 2
"""Replaces a network's number in the random key of judging pairs."""
_Read = tuple[Int64[np.ndarray, " batch"], Sequence[Batch]]
"""Input of a step: rows of pairs, their batch, and once noisy pairs train too, a batch of these."""


@dataclass(kw_only=True, eq=False, repr=False)
class CoTrainer(Loop):
    """Trains two networks; the best epoch, by their mean, is one of co-teaching, and stores each pair's probability."""

    section: CoTeaching
    schedule: Training = field(init=False)
    probabilities: Float32[np.ndarray, "networks pairs"] | None = None
    """Probability that each pair is right, by each network, in this epoch; None in the warm-up."""
    weights = NETWORK_FILES

    def __post_init__(self) -> None:
        ncr.scikit_learn()  # if it is missing, say so before the warm-up
        self.schedule = plain_training(self.section)
        super().__post_init__()
        self.first_best = self.section.warmup_epochs
        start_up, margin = self.section.start_up, self.section.margin
        self._networks = [
            Network(model, optimizer, self.section, start_up and Pace(margin), self.cut)
            for model, optimizer in zip(self.models, self.optimizers, strict=True)
        ]

    def train_epoch(self) -> None:
        state = self.state
        if state.epoch >= self.section.warmup_epochs and self.probabilities is None:
            self.probabilities = self._judge()
            self.checkpoint()
        while state.network < len(self._networks):
            self._train_network()
            state.network, state.step = state.network + 1, 0
            self.checkpoint()
        if self.section.start_up is not None:
            paces = [network.pace for network in self._networks if network.pace is not None]
            state.hardness.append([round(pace.share, 2) for pace in paces])
            if self.probabilities is not None:  # the warm-up is on all negatives
                each = " and ".join(f"{pace} (network {number})" for number, pace in enumerate(paces, start=1))
                logger.info("epoch %d: online negatives are %s", state.epoch + 1, each)

    def _judge(self) -> Float32[np.ndarray, "networks pairs"]:
        """Estimate the probability that each pair is right, by each network in its current state."""
        # Sizes of batches differ by one at most, since a pair's loss depends on its batch.
        count, epoch = self.pairs.split.caption_count, self.state.epoch
        losses = np.empty((len(self._networks), count), dtype=np.float32)
        order = random_order(count, self.seed, epoch, _JUDGING)
        for rows in np.array_split(order, -(-count // self.section.batch_size)):
            batch = read_matched(self.pairs, rows, self.cut).to(self.run.device)
            for own, network in zip(losses, self._networks, strict=True):
                own[rows] = network.losses(batch).float().cpu().numpy()
        self.check_finite(losses)
        probabilities = np.stack([ncr.clean_probabilities(own, seed=self.seed) for own in losses])
        shares = [float(selected_clean(own, threshold=self.section.threshold).mean()) for own in probabilities]
        percent = (100 * share for share in shares)
        logger.info("epoch %d: %.1f %% and %.1f %% of the pairs selected as clean", epoch + 1, *percent)
        self.append({"selected_clean": [round(share, 6) for share in shares]})
        return probabilities

    def _train_network(self) -> None:
        """Train on all pairs in the warm-up, later on those that the other network selects as clean and on the rest."""
        state, section, name = self.state, self.section, "warmup"
        is_clean: Bool[np.ndarray, " pairs"] = np.ones(self.pairs.split.caption_count, dtype=np.bool_)
        if self.probabilities is not None:
            name = "co_teaching"
            is_clean = selected_clean(self.probabilities[1 - state.network], threshold=section.threshold)
        clean, noisy = (
            PairBatches(np.flatnonzero(chosen), section.batch_size, (self.seed, state.epoch, state.network, kind))
            for kind, chosen in enumerate((is_clean, ~is_clean))
        )
        network = f"epoch {state.epoch + 1}: network {state.network + 1}"
        if clean.steps == 0:
            why = "the other network selects no two pairs as clean; lower the threshold, or the learning rate"
            logger.warning("%s learns nothing, since %s", network, why)
        steps = self.windows(state.network, clean.steps, partial(self._read, clean, noisy), self._step)
        with closing(steps) as windows:
            for window in windows:
                self.record(window, {"network": state.network, "loss_name": name})
                is_last = state.step == clean.steps and self.probabilities is not None
                if is_last and on_plateau(means := window.means()):
                    remedy = "" if section.start_up else 'start_up = "auto", '
                    logger.warning(
                        f"{network} has collapsed: all pairs are equally similar (loss {means['retrieval_loss']:.1f}, "
                        f"plateau {means['plateau']:.1f}), and its batches' hardest negatives cost more than that. Try "
                        f"{remedy}a smaller batch_size, whose hardest negatives are easier, or more warmup_epochs."
                    )

    def _read(self, clean: PairBatches, noisy: PairBatches, step: int) -> _Read:
        """Read a step's pairs, a function of the epoch's probabilities and of the step."""
        seen = self.pairs.augmented(self.schedule.augment, self.seed, self.state.epoch)
        rectified_from = self.section.warmup_epochs + self.section.first_rectified
        batches = [clean, noisy] if self.state.epoch >= rectified_from and noisy.steps else [clean]
        read = [read_matched(seen, one[step], self.cut) for one in batches]
        return clean[step], [batch.pin_memory() if self.run.device.type == "cuda" else batch for batch in read]

    def _step(self, read: _Read) -> Mapping[str, Figure]:
        state, device, (rows, batches) = self.state, self.run.device, read
        network, peer = self._networks[state.network], self._networks[1 - state.network]
        batch, *noisy = (one.to(device) for one in batches)
        self._seed(batch)
        if self.probabilities is None:
            return network.warm_up(batch)
        trusted = sent(torch.from_numpy(self.probabilities[1 - state.network][rows]), device)
        labels = [(network.labels(one) + peer.labels(one)) / 2 for one in noisy]  # all labels before any update
        figures: dict[str, Figure] = {**network.learn_clean(batch, trusted)}
        for flagged, label in zip(noisy, labels, strict=True):
            self._seed(flagged)
            figures |= {"noisy_loss": network.learn_noisy(flagged, label), "noisy_label": label.mean()}
        return figures

    def _seed(self, batch: Batch) -> None:
        """Let each process draw its own numbers for its part; the same ones for a batch that each computes."""
        self.run.processes.seed(self.seed, self.state.taken + 1, batch.size, self.cut.sharing(batch.size).rank)

    def write_best(self, ranks: Ranks, folder: Path) -> None:
        super().write_best(ranks, folder)
        assert self.probabilities is not None  # otherwise it cannot be the best
        write_clean_pairs(folder / CLEAN_PAIRS, self.probabilities.mean(axis=0))

    def end_epoch(self) -> None:
        super().end_epoch()
        self.state.network, self.probabilities = 0, None

    def content(self) -> dict[str, Any]:
        return {
            "levels": [network.pace and float(network.pace.level) for network in self._networks],
            "probabilities": None if self.probabilities is None else torch.from_numpy(self.probabilities),
        }

    def restore(self, content: Mapping[str, Any]) -> None:
        for network, level in zip(self._networks, content["levels"], strict=True):
            if network.pace is not None:
                network.pace.level = level
        probabilities = content["probabilities"]
        self.probabilities = None if probabilities is None else probabilities.numpy()
