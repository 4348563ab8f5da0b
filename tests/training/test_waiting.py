"""No step waits for a number: figures stay on their device until a line of the log is written.

Seen on the CPU, where every place that would wait for a device can be counted, with those that never would.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import aoq
from aoq.models import MODELS, build_model, naaf
from aoq.pipeline.config.losses import LossSection
from aoq.pipeline.losses import LOSSES, collapsed_cost, pace
from aoq.pipeline.losses.pace import Pace
from aoq.pipeline.training.loop import learnt_numbers
from aoq.pipeline.training.step import draw_batch, make_objective, read_batch, take_step
from aoq.pipeline.training.window import Window

ROOT = Path(aoq.__file__).resolve().parent.parent
SHAPED_BY_NUMBERS = {torch.ops.aten._local_scalar_dense, torch.ops.aten.nonzero, torch.ops.aten.masked_select}
READ = {torch.Tensor.tolist, torch.Tensor.cpu, torch.Tensor.numpy}
ALLOWED = {
    "models/base.py": "lengths of captions, which are on the CPU",
    "models/text.py": "lengths of captions, which are on the CPU",
    "models/captioner.py": "lengths of captions; and once, which words count",
    "models/fragments.py": "twice a matrix: its captions are cut by their lengths, and padding is left out",
    "models/maxsim.py": "as models/fragments.py, for each direction",
    "models/naaf.py": "thresholds are estimated of as many words as there are",
    "models/gpo.py": "weights are made once for each number of fragments that occurs",
    "models/vse_infinity.py": "words that are left out, on the CPU; regions that are, once",
    "pipeline/training/step.py": "backward of what VSE-infinity leaves out",
    "torch/optim": "Adam counts its steps on the CPU",
}
SMALL = {"feature_size": 6, "vocabulary_size": 24, "embedding_size": 8, "word_size": 5}


class Waits(TorchDispatchMode):
    """Counts, by place in aoq, what would wait for a device."""

    def __init__(self):
        super().__init__()
        self.places = Counter()

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        indices = arguments[1] if function.overloadpacket is torch.ops.aten.index else ()
        if function.overloadpacket in SHAPED_BY_NUMBERS or any(
            i is not None and i.dtype == torch.bool for i in indices
        ):
            self.count()
        return function(*arguments, **(named or {}))

    def count(self):
        self.places[place()] += 1


class Reads(TorchFunctionMode):
    def __init__(self, waits):
        super().__init__()
        self.waits = waits

    def __torch_function__(self, function, types, arguments=(), named=None):
        if function in READ:
            self.waits.count()
        return function(*arguments, **(named or {}))


def place():
    """The innermost function of aoq, or torch's optimisers."""
    frame = sys._getframe(2)
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if "torch/optim" in str(path):
            return "torch/optim"
        if any(path.resolve().is_relative_to(ROOT / room) for room in ("models", "pipeline")):
            return str(path.resolve().relative_to(ROOT))
        frame = frame.f_back
    return "elsewhere"


def waits_of(function):
    waits = Waits()
    with Reads(waits), waits:
        function()
    return waits.places


def step_of(pairs, sampler, name, loss, *, paced=False):
    torch.manual_seed(0)
    model = build_model(name, **SMALL, **({} if MODELS[name].takes_masks else {"regions": 4}))
    learnt = learnt_numbers(loss)
    objective = make_objective(loss, Pace(loss.online_margin) if paced else None, learnt)
    drawn = draw_batch(pairs, sampler, objective, np.arange(0, 48, 5, dtype=np.int32), np.random.default_rng(0), 0)
    batch = read_batch(pairs, drawn)
    parameters = [*model.parameters(), *([] if learnt is None else learnt.parameters())]
    optimizer, window = torch.optim.Adam(parameters), Window()
    return lambda: window.add(take_step(model, optimizer, batch, objective, 2.0)), window


@pytest.fixture(autouse=True)
def as_on_a_device(monkeypatch):
    monkeypatch.setattr(pace, "AT_ONCE", ())
    monkeypatch.setattr(naaf, "FEWEST_WORDS", 4)


def test_steps_of_all_models_wait_where_it_is_known_alone(pairs, sampler):
    found = Counter()
    for name in MODELS:
        step, window = step_of(pairs, sampler, name, LossSection.kind("adapoffquin")(name="adapoffquin"), paced=True)
        found += waits_of(step)
        assert waits_of(window.means) == {"pipeline/training/window.py": 1}
    assert found.keys() == ALLOWED.keys()


@pytest.mark.parametrize("name", LOSSES)
def test_no_loss_waits(pairs, sampler, name):
    loss = LossSection.kind(name)(name=name)
    step, _ = step_of(pairs, sampler, "vsepp", loss, paced=loss.takes_pace)
    assert waits_of(step).keys() <= ALLOWED.keys()
    assert not waits_of(lambda: collapsed_cost(make_objective(loss).loss, 10))
