"""Sums of figures over a window of steps, for the log."""

from __future__ import annotations

import time
from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor

Figure = float | Float[Tensor, ""]
"""A number, or one on the device that computes it."""


class Window:
    """Sums figures over some steps. Those on a device stay there until they are read: one transfer per window."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._waiting: dict[tuple[torch.device, tuple[str, ...]], list[Tensor]] = {}
        self._started = time.perf_counter()
        self.steps = 0

    def add(self, figures: Mapping[str, Figure]) -> None:
        self.steps += 1
        for name in figures:
            self._sums.setdefault(name, 0.0)
        tensors = {name: value for name, value in figures.items() if isinstance(value, Tensor)}
        for device in {value.device for value in tensors.values()}:
            names = tuple(name for name, value in tensors.items() if value.device == device)
            values = torch.stack([tensors[name] for name in names])  # a copy: what is learnt goes on changing
            self._waiting.setdefault((device, names), []).append(values)
        self._sum({name: value for name, value in figures.items() if not isinstance(value, Tensor)})

    def _sum(self, figures: Mapping[str, float]) -> None:
        for name, value in figures.items():
            self._sums[name] += value

    @property
    def steps_per_second(self) -> float:
        return self.steps / (time.perf_counter() - self._started)

    def means(self) -> dict[str, float]:
        for (_, names), rows in self._waiting.items():
            for row in torch.stack(rows).tolist():
                self._sum(dict(zip(names, row, strict=True)))
        self._waiting.clear()
        return {name: round(value / self.steps, 6) for name, value in self._sums.items()}
