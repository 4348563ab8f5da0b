"""A step in chunks or by several processes: the figures, gradients and buffers of one that takes the batch at once."""

import multiprocessing
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from aoq.models import naaf
from aoq.pipeline.config.losses import OnlineLoss
from aoq.pipeline.losses.similarities import LossValue
from aoq.pipeline.training import chunks
from aoq.pipeline.training.chunks import UNCUT, Cut
from aoq.pipeline.training.processes import Processes
from aoq.pipeline.training.step import forward, make_objective, take_step
from tests.chaos.forks import PRELOADED
from tests.training.steps import CASES, LOSSES, NORMED, ROWS, drawn, fresh, one_of_several, read, step

VSEPP = [("vsepp", loss) for loss in LOSSES if loss != "table"]


@pytest.mark.parametrize(("name", "loss"), [*(case for case in CASES if "table" in case), ("scan", "learnt"), *VSEPP])
def test_chunks_are_the_whole_scored_again_or_not(pairs, sampler, name, loss, monkeypatch):
    monkeypatch.setattr(naaf, "FEWEST_WORDS", 4)
    draw, called, again = drawn(pairs, sampler, loss, ROWS[:6]), [], chunks._ScoreAgain.backward
    monkeypatch.setattr(chunks._ScoreAgain, "backward", lambda *given: called.append(1) or again(*given))
    whole, chunked = (step(pairs, draw, name, loss, cut) for cut in (UNCUT, Cut(chunk=4)))
    assert any(found.abs().max() > 1e-3 for found in whole["gradients"].values())
    torch.testing.assert_close(whole, chunked, rtol=1e-10, atol=1e-10)
    assert len(called) == (loss not in ("learnt", "taught") and fresh(name).scores_alone)


@pytest.mark.parametrize("of_scores", [0.0, 0.5])
def test_what_is_computed_again_has_the_same_random_numbers(pairs, sampler, of_scores):
    """The gradient along a direction, against a difference of losses with the same dropout."""
    model = fresh("described")
    if of_scores:
        score = type(model).similarity
        model.similarity = lambda *codes: torch.nn.functional.dropout(score(model, *codes), of_scores)
    model.describe = torch.nn.Sequential(torch.nn.Dropout(0.5), model.describe)
    model.project = torch.nn.Sequential(model.project, torch.nn.Dropout(0.5))
    objective = make_objective(LOSSES["online"])
    batch = read(pairs, drawn(pairs, sampler, "online"))

    def loss():
        torch.manual_seed(5)
        value, auxiliary, _ = forward(model, batch, objective, Cut(chunk=4))
        return value.total / len(ROWS) + auxiliary

    loss().backward()
    weight = model.project[0].weight
    direction, size = torch.randn_like(weight), 1e-6
    slope = float((weight.grad * direction).sum())
    with torch.no_grad():
        weight += size * direction
        above = float(loss())
        weight -= 2 * size * direction
        below = float(loss())
    assert (above - below) / (2 * size) == pytest.approx(slope, rel=1e-5)


def test_chunks_keep_no_more_than_codes_and_scores(pairs):
    """Measure what autograd saves in the forward pass of many pairs, by its size."""
    kept = {}
    model, objective = fresh("scan"), make_objective(LOSSES["online"])
    batch = read(pairs, drawn(pairs, None, "online", np.arange(48, dtype=np.int32)))
    for chunk in (None, 2):
        sizes = {}

        def pack(tensor, sizes=sizes):
            sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            forward(model, batch, objective, Cut(chunk=chunk))
        kept[chunk] = sum(sizes.values())
    assert kept[2] < kept[None] / 6


def test_batch_norm_is_refused_where_it_would_be_computed_in_parts_or_again(monkeypatch):
    with pytest.raises(ValueError, match=r"VSRN has BatchNorm.*leave `chunk` out"):
        Cut(chunk=3).check(fresh("vsrn"))
    UNCUT.check(fresh("vsrn"))
    Cut(processes=Processes(count=2)).check(fresh("vsrn"), gradient_checkpointing=True)  # it has no towers
    Cut(chunk=3).check(model := fresh("vsepp"))
    monkeypatch.setattr(type(model), "towers", {"image": SimpleNamespace(network=torch.nn.BatchNorm2d(3))})
    Cut(processes=Processes(count=2)).check(model)
    Cut().check(model, gradient_checkpointing=True)
    with pytest.raises(ValueError, match=r"a tower of this VSEpp has BatchNorm, .* leave `gradient_checkpointing` out"):
        Cut(processes=Processes(count=2)).check(model, gradient_checkpointing=True)


@pytest.mark.parametrize("name", ["vsepp", "imram"])
def test_where_nothing_is_to_learn_gradients_are_0_as_they_are_at_once(pairs, name):
    """An optimiser with momentum goes on where gradients are 0, and not where there are none."""
    nothing = lambda found: LossValue(0 * found.matrix.sum(), {"plateau": torch.ones(())})  # noqa: E731
    gradients = []
    for cut in (UNCUT, Cut(chunk=4)):
        model, objective = fresh(name), make_objective(OnlineLoss(name="online", margin=1e-9))
        objective = replace(objective, loss=nothing)
        batch = read(pairs, drawn(pairs, None, "online", ROWS[:6]))
        take_step(model, torch.optim.Adam(model.parameters()), batch, objective, 1.0, cut)
        gradients.append({key: one.grad for key, one in model.named_parameters()})
    has_gradient = [{key for key, one in found.items() if one is not None} for found in gradients]
    assert has_gradient[0] == has_gradient[1]
    assert not any(one.any() for found in gradients for one in found.values() if one is not None)


FORKED = multiprocessing.get_context("forkserver")
CHUNKED = [("scan", "table", 2), ("naaf", "learnt", 1)]
FEW = [("scan", "table", ROWS[:1]), ("vsepp", "learnt", ROWS[:3]), ("sgr", "table", ROWS[:3])]
"""Too few pairs for some numbers of processes."""


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_every_process_takes_the_whole_step(pairs, sampler, count, tmp_path):
    FORKED.set_forkserver_preload([*PRELOADED])
    cases = [(name, loss, None, ROWS) for name, loss in (VSEPP if count == 2 else CASES)]
    cases += [(name, "table", None, ROWS) for name in ("described", "scan", *NORMED)]
    cases += [(name, loss, chunk, ROWS) for name, loss, chunk in CHUNKED]
    cases += [(name, loss, None, rows) for name, loss, rows in FEW]
    steps = [(drawn(pairs, sampler, loss, rows), name, loss, chunk) for name, loss, chunk, rows in cases]
    ranks = [(rank, count, tmp_path, pairs, steps) for rank in range(count)]
    started = [FORKED.Process(target=one_of_several, args=given) for given in ranks]
    for process in started:
        process.start()
    for process in started:
        process.join(120)
        assert process.exitcode == 0
    expected = torch.load(tmp_path / "alone.pt")
    for rank in range(count):
        *results, refusal = torch.load(tmp_path / f"{rank}.pt")
        for one, other, case in zip(expected, results, cases, strict=True):
            explain = lambda message, case=case: f"{case}: {message}"  # noqa: E731
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10, msg=explain)
        assert refusal.startswith("process 1 of this training differs from the first in its data")
