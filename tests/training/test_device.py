"""Every model's step on a device that is none: nothing is made or left on the CPU, and the numbers are the CPU's."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from aoq.models import MODELS, naaf
from aoq.pipeline.losses.pace import Pace
from aoq.pipeline.losses.temperature import LearntTemperature
from aoq.pipeline.training.step import PairDraws, constrain, make_objective, read_batch, take_step
from tests.training.simulated import DEVICE, Simulated, There
from tests.training.steps import BOTH, LOSSES, drawn, fresh

CPU = torch.device("cpu")
NAMES = [*MODELS, "described"]
CASES = [(name, loss) for name in NAMES for loss in LOSSES if loss in ("online", "table") or name in ("vsepp", "scan")]


def step(pairs, draw, name, loss, device):
    """The figures, gradients, buffers and weights after one step."""
    model, learnt = fresh(name).to(device), LearntTemperature().double().to(device) if loss == "learnt" else None
    batch = read_batch(pairs, draw)
    batch = replace(batch, images=replace(batch.images, features=batch.images.features.double())).to(device)
    objective = make_objective(LOSSES[loss], Pace(0.2) if loss == "online" else None, learnt)
    if model.attends:
        draws = PairDraws(np.random.default_rng(4), len(draw.groups[0].images))
        objective = replace(objective, besides=partial(constrain, constraints=BOTH, draws=draws))
    parameters = [*model.parameters(), *([] if learnt is None else learnt.parameters())]
    torch.manual_seed(1)
    figures = take_step(model, torch.optim.Adam(parameters, lr=1e-3), batch, objective, 2.0)
    gradients = {name: one.grad for name, one in model.named_parameters() if one.grad is not None}
    return {"figures": figures, "gradients": gradients, "weights": {**model.state_dict()}}


@pytest.mark.parametrize(("name", "loss"), CASES)
def test_a_step_stays_on_its_device(pairs, sampler, monkeypatch, name, loss):
    monkeypatch.setattr(naaf, "FEWEST_WORDS", 4)
    draw = drawn(pairs, sampler, loss)
    expected = step(pairs, draw, name, loss, CPU)
    with Simulated():
        found = step(pairs, draw, name, loss, DEVICE)
    for part, values in expected.items():
        assert values.keys() == found[part].keys()
        for one, value in values.items():
            assert isinstance(found[part][one], There), one
            torch.testing.assert_close(found[part][one].values, value, rtol=1e-7, atol=1e-10)


def test_two_devices_do_not_meet():
    with Simulated():
        there = torch.ones(3).to(DEVICE)
        with pytest.raises(RuntimeError, match=r"aten.mul.Tensor is given tensors of the CPU and of simulated:0"):
            there * torch.ones(3)
        assert (there * torch.tensor(2.0)).sum().item() == 6
