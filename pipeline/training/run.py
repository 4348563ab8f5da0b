"""A training's run: where and how it computes, and its position."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

from aoq.pipeline.training.processes import ALONE, Processes


@dataclass(frozen=True)
class Run:
    """Settings of where and how a training runs; none of them changes the result."""

    work: Path
    device: torch.device
    checkpoint_steps: int = 500
    tensorboard: bool = False
    progress: Callable[[int, int, str], None] = lambda done, total, text: None
    workers: int = 0
    """Threads that draw and read batches ahead; 0: the training's own thread does."""
    processes: Processes = ALONE
    """Processes that train together; only the leader writes."""


@dataclass
class State:
    """Position of a training; everything but the metrics' position is a function of the steps taken."""

    epoch: int = 0
    step: int = 0
    """Steps taken in this epoch (of this network, where there are two)."""
    best_rsum: float = -math.inf
    best_epoch: int = -1
    best_files: dict[str, str] = field(default_factory=dict)
    """The sha256 of each file that the best epoch left."""
    metrics_position: int = 0
    metrics_sha256: str = ""
    history: list[dict[str, float]] = field(default_factory=list)
