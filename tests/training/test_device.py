"""Every model's step on a device that is none: nothing is made or left on the CPU, and the numbers are the CPU's."""

from functools import partial

import numpy as np
import pytest
import torch

from aoq.models import MODELS, naaf
from aoq.pipeline.config.losses import LogitLoss, LossSection
from aoq.pipeline.config.training import CoTeaching
from aoq.pipeline.losses import LOSSES as LOSS_KINDS
from aoq.pipeline.losses import collapsed_cost
from aoq.pipeline.losses.info_nce import LearntTemperature
from aoq.pipeline.losses.pace import Pace
from aoq.pipeline.training import loop
from aoq.pipeline.training.batches import matched
from aoq.pipeline.training.chunks import Cut
from aoq.pipeline.training.co_teaching import CoTrainer
from aoq.pipeline.training.step import make_objective, take_step
from tests.training.conftest import CPU
from tests.training.simulated import DEVICE, Simulated, There, unwaited
from tests.training.steps import LOSSES, ROWS, drawn, fresh, let_thresholds_wait, read, step

CASES = [(name, "table", None) for name in MODELS]
CASES += [("vsepp", loss, None) for loss in LOSSES if loss != "table"] + [("vsepp", "table", 4)]


@pytest.fixture(autouse=True)
def thresholds_may_wait(monkeypatch):
    let_thresholds_wait(monkeypatch, partial(Simulated.set_waits, True))
    monkeypatch.setattr(naaf, "FEWEST_WORDS", 4)


@pytest.mark.parametrize(("name", "loss", "chunk"), CASES)
def test_a_step_stays_on_its_device_and_waits_for_nothing(pairs, sampler, name, loss, chunk):
    draw = drawn(pairs, sampler, loss, ROWS[:6])

    def step_on(device, **how):
        pace = Pace(0.2) if loss == "online" else None
        return step(pairs, draw, name, loss, Cut(chunk), device=device, pace=pace, lr=1e-3, **how)

    expected = step_on(CPU)
    with Simulated():
        found = step_on(DEVICE, unwaited=unwaited)
    for part, values in expected.items():
        assert values.keys() == found[part].keys()
        for one, value in values.items():
            assert isinstance(found[part][one], There), one
            torch.testing.assert_close(found[part][one].values, value, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("name", LOSS_KINDS)
def test_no_loss_waits(pairs, sampler, name):
    loss = LossSection.kind(name)(name=name)
    with Simulated():
        model = fresh("vsepp").to(DEVICE)
        learnt = LearntTemperature(**loss.learnt).to(DEVICE) if isinstance(loss, LogitLoss) else None
        objective = make_objective(loss, Pace(loss.online_margin) if loss.takes_pace else None, learnt or dict)
        drawing = sampler.draw_for(loss.draws, ROWS, np.random.default_rng(0), 0)
        batch = read(pairs, drawing).to(DEVICE)
        with unwaited():
            take_step(model, torch.optim.Adam(model.parameters()), batch, objective, 2.0)
            collapsed_cost(objective.loss, 10, device=DEVICE)


def test_a_step_of_co_teaching_waits_for_nothing(pairs, monkeypatch, tmp_path):
    section = CoTeaching(warmup_epochs=1, epochs=1, batch_size=10, learning_rate=1e-2, start_up="auto")
    monkeypatch.setattr(loop, "make_optimizer", lambda model, *_: torch.optim.Adam(model.parameters()))
    where = {"description": {}, "pairs": pairs, "seed": 0, "run": loop.Run(tmp_path, DEVICE)}
    with Simulated():
        trainer = CoTrainer(models=[fresh("vsepp"), fresh("vsepp")], section=section, **where)
        trainer.probabilities = np.full((2, 48), 0.5, np.float32)
        with unwaited():
            trainer._step((ROWS.astype(np.int64), [read(pairs, matched(pairs, ROWS))] * 2))


@pytest.mark.parametrize("wait", ["item", "cpu", "nonzero", "unique", "tolist"])
def test_what_waits_or_meets_another_device_is_refused(wait):
    with Simulated():
        there = torch.ones(3).to(DEVICE)
        getattr(there.sum() if wait == "item" else there, wait)()
        with unwaited():
            torch.ones(3).pin_memory().to(DEVICE, non_blocking=True)
            for copy in (getattr(there.sum() if wait == "item" else there, wait), lambda: torch.ones(3).to(DEVICE)):
                with pytest.raises(RuntimeError, match="waits for simulated:0"):
                    copy()
        with pytest.raises(RuntimeError, match=r"aten.mul.Tensor is given tensors of the CPU and of simulated:0"):
            there * torch.ones(3)
