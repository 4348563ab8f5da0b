"""A step in chunks: the loss and the gradients of one that takes the batch at once."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from aoq.models import MODELS, build_model, naaf
from aoq.models.base import EmbeddingModel
from aoq.pipeline.config.losses import AdaptiveLoss, LossSection, OnlineLoss
from aoq.pipeline.config.training import Constraints
from aoq.pipeline.losses.temperature import LearntTemperature
from aoq.pipeline.training.parts import WHOLE, Cut
from aoq.pipeline.training.step import PairDraws, constrain, draw_batch, forward, make_objective, read_batch

LOSSES = {
    "online": OnlineLoss(name="online"),
    "table": AdaptiveLoss(name="adapoffquin"),
    "companions": AdaptiveLoss(name="adapoffquin", companions="anchors"),
    "learnt": LossSection.model_validate({"name": "infonce"}),
}
BOTH = Constraints.model_validate({"ccr": {"weight": 0.1, "margin": 0.2}, "ccs": {"weight": 1.0, "margin": 0.1}})
ROWS = np.arange(0, 48, 5, dtype=np.int32)


class Described(MODELS["vsepp"]):
    """An auxiliary loss, and dropout that it shares with the encoder."""

    def __init__(self, **options):
        super().__init__(**options)
        self.describe = torch.nn.Linear(8, 24)
        self.dropout = torch.nn.Dropout(0.5)

    def encode_images(self, images):
        code = super().encode_images(images)
        return replace(code, vectors=self.dropout(code.vectors), context=code.vectors)

    def auxiliary_loss(self, images, captions):
        return torch.nn.functional.cross_entropy(self.describe(self.dropout(images.context)), captions.words[:, 1])


def fresh(name, **options):
    torch.manual_seed(0)
    small = {"embedding_size": 8, "word_size": 5, "feature_size": 6, "vocabulary_size": 24}
    model = Described(**small) if name == "described" else build_model(name, **small, **options)
    return model.double().train()


def has_batch_norm(name):
    return any(isinstance(layer, torch.nn.BatchNorm1d) for layer in fresh(name).modules())


FREE = [name for name in MODELS if not has_batch_norm(name)]


def step(pairs, sampler, name, loss, cut):
    """The loss, what is added to it, the gradients and buffers of one step, in float64."""
    model = fresh(name)
    learnt = LearntTemperature().double() if loss == "learnt" else None
    objective = make_objective(LOSSES[loss], None, learnt)
    rng = np.random.default_rng(3)
    batch = read_batch(pairs, draw_batch(pairs, sampler, objective, ROWS, rng, 0))
    batch = replace(batch, images=replace(batch.images, features=batch.images.features.double()))
    if model.attends:
        draws = PairDraws(rng, len(batch.image_rows))
        objective = replace(objective, besides=partial(constrain, constraints=BOTH, draws=draws))
    value, auxiliary = forward(model, batch, objective, cut)
    (value.total if auxiliary is None else value.total + auxiliary).backward()
    parts = [model] if learnt is None else [model, learnt]
    gradients = {f"{place} {n}": p.grad for place, part in enumerate(parts) for n, p in part.named_parameters()}
    return value, auxiliary, gradients, dict(model.named_buffers())


def same(one, other):
    torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", FREE)
def test_chunks_are_the_whole(pairs, sampler, name, loss, monkeypatch):
    monkeypatch.setattr(naaf, "FEWEST_WORDS", 4)
    whole, chunked = (step(pairs, sampler, name, loss, cut) for cut in (WHOLE, Cut(chunk=3)))
    assert any(found is not None and found.abs().max() > 1e-3 for found in whole[2].values())
    for one, other in zip(whole, chunked, strict=True):
        same(vars(one) if one is whole[0] else one, vars(other) if other is chunked[0] else other)


def test_there_are_both_kinds():
    assert any(issubclass(MODELS[name], EmbeddingModel) for name in FREE)
    assert any(MODELS[name].attends for name in FREE)


def test_an_auxiliary_loss_is_that_of_all_pairs(pairs, sampler, monkeypatch):
    monkeypatch.setattr(torch.nn.Dropout, "forward", lambda layer, x: x)
    whole, chunked = (step(pairs, sampler, "described", "table", cut) for cut in (WHOLE, Cut(chunk=3)))
    same(whole[1:], chunked[1:])


def test_what_is_computed_again_has_the_same_random_numbers(pairs, sampler):
    """The gradient along a direction, against a difference of losses with the same dropout."""
    model, size, seed = fresh("described"), len(ROWS), 5
    objective = make_objective(OnlineLoss(name="online"))
    batch = read_batch(pairs, draw_batch(pairs, sampler, objective, ROWS, np.random.default_rng(0), 0))
    batch = replace(batch, images=replace(batch.images, features=batch.images.features.double()))

    def loss():
        torch.manual_seed(seed)
        value, auxiliary = forward(model, batch, objective, Cut(chunk=4))
        assert len(value.total.shape) == 0
        return value.total / size + auxiliary

    loss().backward()
    weight = model.project.weight
    direction, step_size = torch.randn_like(weight), 1e-6
    slope = float((weight.grad * direction).sum())
    with torch.no_grad():
        weight += step_size * direction
        above = float(loss())
        weight -= 2 * step_size * direction
        below = float(loss())
    assert (above - below) / (2 * step_size) == pytest.approx(slope, rel=1e-5)


def test_batch_norm_is_refused_in_parts():
    with pytest.raises(ValueError, match=r"VSRN has BatchNorm.*leave `chunk` out"):
        Cut(chunk=3).check(fresh("vsrn"))
    WHOLE.check(fresh("vsrn"))
    Cut(chunk=3).check(fresh("scan"))
