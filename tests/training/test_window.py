"""Figures of some steps, numbers or on their device, become the same means."""

from __future__ import annotations

import torch

from aoq.pipeline.training.window import Window


def test_a_window_averages_its_steps():
    window = Window()
    window.add({"loss": 1.0, "weight": 3.0})
    window.add({"loss": 2.0, "weight": 5.0})
    assert window.steps == 2
    assert window.means() == {"loss": 1.5, "weight": 4.0}


def test_a_window_takes_figures_that_stay_on_their_device_as_they_are_at_each_step():
    """The same means as of numbers; what is learnt goes on changing; some figures come with some steps only."""
    by_number, by_tensor, learnt = Window(), Window(), torch.zeros(())
    for step in range(7):
        learnt += 0.1
        numbers = {"loss": 1 / (step + 1), "temperature": float(learnt)} | ({"noisy": 3.0} if step > 4 else {})
        by_number.add({**numbers, "share": 0.1 * step})
        tensors = {name: torch.tensor(value, dtype=torch.float64) for name, value in numbers.items()}
        by_tensor.add({**tensors, "temperature": learnt, "share": 0.1 * step})
        assert list(by_tensor.means()) == ["loss", "temperature", "share", "noisy"][: 4 if step > 4 else 3]
    assert by_tensor.means() == by_number.means()
