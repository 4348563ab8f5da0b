"""A step in chunks: the figures, the gradients and the buffers of one that takes the batch at once."""

from __future__ import annotations

import inspect
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from aoq.models import MODELS, naaf
from aoq.models.base import Code, EmbeddingModel
from aoq.pipeline.config.losses import OnlineLoss
from aoq.pipeline.losses import LOSSES as LOSS_KINDS
from aoq.pipeline.losses import loss_kind
from aoq.pipeline.losses.pace import TOP, Pace
from aoq.pipeline.losses.similarities import LossValue, OfflineSimilarities, Similarities
from aoq.pipeline.training import rescored
from aoq.pipeline.training.parts import WHOLE, Cut
from aoq.pipeline.training.precision import in_precision
from aoq.pipeline.training.processes import Processes
from aoq.pipeline.training.step import forward, make_objective, read_batch, take_step
from tests.training.steps import CASES, LOSSES, NAMES, ROWS, drawn, fresh, step


def same(one, other):
    torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


FEW = [(name, loss) for name, loss in CASES if loss == "table" or name in ("vsepp", "scan")]
"""Types are checked while these run, again and again; other processes take all steps."""


@pytest.mark.parametrize("by_pair", [True, False])
@pytest.mark.parametrize(("name", "loss"), FEW)
def test_chunks_are_the_whole(pairs, sampler, name, loss, by_pair, monkeypatch):
    """Entries with a gradient are scored again one by one, or all at once."""
    monkeypatch.setattr(naaf, "FEWEST_WORDS", 4)
    monkeypatch.setattr(rescored, "FEW", 1.0 if by_pair else -1.0)
    monkeypatch.setattr(rescored, "MOST", 1)
    draw = drawn(pairs, sampler, loss)
    whole, chunked = (step(pairs, draw, name, loss, cut) for cut in (WHOLE, Cut(chunk=4)))
    assert any(found is not None and found.abs().max() > 1e-3 for found in whole["gradients"].values())
    same(whole, chunked)


@pytest.mark.parametrize("cut", [WHOLE, Cut(chunk=4)])
@pytest.mark.parametrize("loss", ["online", "table", "companions"])
@pytest.mark.parametrize("name", [name for name in MODELS if MODELS[name].attends])
def test_few_entries_scored_again_are_the_whole(pairs, sampler, name, loss, cut, monkeypatch):
    """A matrix without a graph and a list of its few entries, against all of it with its gradients."""
    if cut.chunk is not None and name not in NAMES:
        pytest.skip("has BatchNorm")
    monkeypatch.setattr(naaf, "FEWEST_WORDS", 4)
    draw, scored = drawn(pairs, sampler, loss), []
    monkeypatch.setattr(rescored, "FEW", -1.0)
    whole = step(pairs, draw, name, loss)
    monkeypatch.setattr(rescored, "FEW", 1.0)
    score = MODELS[name].similarity

    def similarity(self, *codes):
        scored.append(torch.is_grad_enabled())
        return score(self, *codes)

    monkeypatch.setattr(MODELS[name], "similarity", similarity)
    same(whole, step(pairs, draw, name, loss, cut))
    assert scored
    assert any(scored) == (name == "saf")


@pytest.mark.parametrize(
    ("loss", "batch", "pays"), [("online", 12, True), ("online", 11, False), ("learnt", 512, False)]
)
def test_all_is_kept_where_many_entries_have_a_gradient(loss, batch, pays):
    model, code = fresh("scan"), Code(torch.ones(1, 1, 8))
    entries = make_objective(LOSSES[loss]).entries
    assert rescored.pays(model, code, batch, entries) == pays
    assert not rescored.pays(fresh("vsepp"), code, batch, entries)
    with torch.no_grad():
        assert not rescored.pays(model, code, batch, entries)


def test_online_negatives_that_are_means_have_gradients_everywhere():
    pace = Pace(0.2, level=float(TOP))
    objective = make_objective(LOSSES["online"], pace)
    assert objective.entries() == 3
    pace.level = TOP - 1.0
    assert objective.entries() is None


@pytest.mark.parametrize("name", [name for name, kind in LOSS_KINDS.items() if kind.entries is not None])
@pytest.mark.parametrize("companions", [None, "anchors"])
def test_no_loss_gives_more_entries_a_gradient_than_it_says(name, companions):
    if companions is not None and LOSS_KINDS[name].offline != "quintuplet":
        pytest.skip("draws no companions")
    torch.manual_seed(0)
    size, kind = 24, loss_kind(name, companions)
    matrix = torch.rand(size, size, requires_grad=True)
    offline = OfflineSimilarities(*torch.rand(4, size))
    numbers = dict.fromkeys(inspect.signature(LOSS_KINDS[name].function).parameters, 0.5)
    numbers.pop("pairs")
    kind.function(Similarities(matrix, torch.eye(size).bool(), offline), **numbers).total.backward()
    assert 0 < matrix.grad.count_nonzero() <= kind.entries * size


def test_there_are_all_kinds():
    kinds = [MODELS[name] for name in NAMES if name in MODELS]
    assert any(issubclass(kind, EmbeddingModel) for kind in kinds)
    assert any(kind.attends for kind in kinds)


@pytest.mark.parametrize("of_scores", [0.0, 0.5])
def test_what_is_computed_again_has_the_same_random_numbers(pairs, sampler, of_scores, monkeypatch):
    """The gradient along a direction, against a difference of losses with the same dropout.

    Scores that are drawn can only be drawn again all together.
    """
    monkeypatch.setattr(rescored, "FEW", 1.0)
    model = fresh("described")
    if of_scores:
        score = type(model).similarity
        model.similarity = lambda *codes: torch.nn.functional.dropout(score(model, *codes), of_scores)
    model.describe = torch.nn.Sequential(torch.nn.Dropout(0.5), model.describe)
    model.project = torch.nn.Sequential(model.project, torch.nn.Dropout(0.5))
    objective = make_objective(LOSSES["online"])
    batch = read_batch(pairs, drawn(pairs, sampler, "online"))
    batch = replace(batch, images=replace(batch.images, features=batch.images.features.double()))

    def loss():
        torch.manual_seed(5)
        value, auxiliary = forward(model, batch, objective, Cut(chunk=4))
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
    rows = np.arange(48, dtype=np.int32)
    batch = read_batch(pairs, drawn(pairs, None, "online", rows))
    batch = replace(batch, images=replace(batch.images, features=batch.images.features.double()))
    for chunk in (None, 2):
        sizes = {}

        def pack(tensor, sizes=sizes):
            sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            forward(model, batch, objective, Cut(chunk=chunk))
        kept[chunk] = sum(sizes.values())
    assert kept[2] < kept[None] / 6


def test_batch_norm_is_refused_in_chunks():
    with pytest.raises(ValueError, match=r"VSRN has BatchNorm.*leave `chunk` out"):
        Cut(chunk=3).check(fresh("vsrn"))
    WHOLE.check(fresh("vsrn"))
    Cut(processes=Processes(count=2)).check(fresh("vsrn"), gradient_checkpointing=True)  # it has no towers
    Cut(chunk=3).check(fresh("scan"))


def test_several_processes_cannot_compute_batch_norm_again(monkeypatch):
    model = fresh("vsepp")
    monkeypatch.setattr(type(model), "towers", {"image": SimpleNamespace(network=torch.nn.BatchNorm2d(3))})
    Cut(processes=Processes(count=2)).check(model)
    Cut().check(model, gradient_checkpointing=True)
    with pytest.raises(ValueError, match=r"a tower of this VSEpp has BatchNorm, .* leave `gradient_checkpointing` out"):
        Cut(processes=Processes(count=2)).check(model, gradient_checkpointing=True)


def nothing_to_learn(found):
    return LossValue(0 * found.matrix.sum(), {"plateau": torch.ones(())})


@pytest.mark.parametrize("name", ["vsepp", "imram"])
def test_where_nothing_is_to_learn_gradients_are_0_as_they_are_at_once(pairs, name):
    """An optimiser with momentum goes on where gradients are 0, and not where there are none."""
    gradients = []
    for cut in (WHOLE, Cut(chunk=4)):
        model, objective = fresh(name), make_objective(OnlineLoss(name="online", margin=1e-9))
        objective = replace(objective, loss=nothing_to_learn)
        batch = read_batch(pairs, drawn(pairs, None, "online"))
        batch = replace(batch, images=replace(batch.images, features=batch.images.features.double()))
        take_step(model, torch.optim.Adam(model.parameters()), batch, objective, 1.0, cut)
        gradients.append({key: one.grad for key, one in model.named_parameters()})
    has_gradient = [{key for key, one in found.items() if one is not None} for found in gradients]
    assert has_gradient[0] == has_gradient[1]
    assert not any(one.any() for found in gradients for one in found.values() if one is not None)


def test_a_model_in_bfloat16_watches_its_batches_if_it_does():
    for name in ("vsepp", "naaf"):
        model = fresh(name)
        assert in_precision(model, "bfloat16", torch.device("cpu")).observes == model.observes == (name == "naaf")
