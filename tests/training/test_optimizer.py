"""Rates by step, groups of parameters, frozen and adapted towers, and averages of weights that resume to the bit."""

import math

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.testing import assert_close

from aoq.models import MODELS, build_model
from aoq.models.base import Captions
from aoq.models.towers.tower import Tower
from aoq.models.vsepp import VSEpp
from aoq.pipeline.config.training import LoRA
from aoq.pipeline.losses.info_nce import LearntTemperature
from aoq.pipeline.training.checkpoint import load_model
from aoq.pipeline.training.optimizer import (
    adapt,
    learning_rate,
    make_average,
    make_optimizer,
    merged_weights,
    set_up_towers,
)
from tests.training.conftest import OPTIONS, SMALL, TRAINING, changed, kill_and_resume, of_loss

COSINE = TRAINING.model_copy(update={"schedule": "cosine", "decay_epochs": (), "warmup_steps": 5})


class Network(torch.nn.Module):
    """A GRU below two residual linear layers and a norm."""

    def __init__(self, words):
        super().__init__()
        self.words, self.blocks = words, torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(2))
        self.norm = torch.nn.LayerNorm(8)

    def forward(self, captions):
        state = self.words.last(captions)
        for block in self.blocks:
            state = state + block(state)
        return self.norm(state)


class Words(Tower):
    load_pretrained = states = None

    def __init__(self, words):
        super().__init__()
        self.network, self.kept = Network(words), False

    def last(self, captions):
        return self.network(captions)

    def checkpoint_gradients(self):
        self.kept = True


class Towered(VSEpp):
    def __init__(self, **options):
        super().__init__(**options)
        self.text = Words(self.text)

    @property
    def towers(self):
        return {"text": self.text}


@pytest.fixture
def towered(monkeypatch):
    monkeypatch.setitem(MODELS, "towered", Towered)
    monkeypatch.setitem(OPTIONS, "towered", SMALL)
    return lambda: build_model("towered", **SMALL)


def test_the_rate_rises_and_falls_along_half_a_cosine():
    rates = [learning_rate(COSINE, taken // 5, taken % 5, 5) for taken in range(15)]
    assert rates[:5] == pytest.approx([2e-3, 4e-3, 6e-3, 8e-3, 1e-2])
    expected = [1e-2 * 0.5 * (1 + math.cos(math.pi * done / 10)) for done in range(10)]
    assert rates[5:] == pytest.approx(expected)
    warm = changed(warmup_steps=4)
    assert [learning_rate(warm, 0, step, 5) for step in range(5)] == pytest.approx([2.5e-3, 5e-3, 7.5e-3, 1e-2, 1e-2])
    assert learning_rate(warm, 2, 2, 5) == pytest.approx(1e-3)
    stepped = changed(decay_epochs=(1, 2))
    assert [learning_rate(stepped, epoch) for epoch in range(3)] == pytest.approx([1e-2, 1e-3, 1e-4])


def test_every_step_is_taken_at_its_rate_and_towers_at_their_share(towered, run_training, tmp_path, monkeypatch):
    rates, step = [], torch.optim.Adam.step
    listen = lambda self: (rates.append([group["lr"] for group in self.param_groups]), step(self))  # noqa: E731
    monkeypatch.setattr(torch.optim.Adam, "step", listen)
    run_training(tmp_path, "towered", training=COSINE)
    expected = [learning_rate(COSINE, n // 5, n % 5, 5) for n in range(15)]
    assert rates == [pytest.approx([rate, 0.1 * rate]) for rate in expected]


def groups(model, **options):
    """List each group's parameter names, its share and its own weight decay."""
    names = {id(one): name for name, one in model.named_parameters()}
    made = make_optimizer(model, changed(**options)).param_groups
    return [({names[id(one)] for one in g["params"]}, g.get("share"), g.get("weight_decay")) for g in made]


def test_biases_and_norms_do_not_decay_if_so_changed(towered):
    model = towered()
    found = groups(model, weight_decay=0.1, decay_biases=False)
    assert [(share, decay) for _, share, decay in found] == [(None, 0.1), (None, 0.0), (0.1, 0.1), (0.1, 0.0)]
    for names, _, decay in found:
        assert all((model.get_parameter(name).ndim > 1) == (decay > 0) for name in names)
    assert "text.network.norm.weight" in found[3][0]
    assert len(groups(model, weight_decay=0.1)) == 2


def test_each_layer_has_a_share_of_the_rate_of_the_one_above(towered):
    found = groups(towered(), tower_rate=0.5, layer_decay=0.8)
    by_share = {share and round(share, 6): names for names, share, _ in found}
    assert by_share.keys() == {None, 0.5, 0.4, 0.32, 0.256}
    assert by_share[0.5] == {"text.network.norm.weight", "text.network.norm.bias"}
    assert by_share[0.4] == {"text.network.blocks.1.weight", "text.network.blocks.1.bias"}
    assert "text.network.words.embedding.weight" in by_share[0.256]
    assert by_share[None] == {"project.weight", "project.bias"}


@pytest.mark.parametrize(
    ("options", "parts"), [({"freeze": ("text",)}, ("",)), ({"train_layers": 1}, ("words.", "blocks.0."))]
)
def test_what_is_frozen_stays_as_it_is_and_the_rest_is_trained(towered, run_training, tmp_path, options, parts):
    torch.manual_seed(3)
    model, fixed = towered(), tuple(f"text.network.{part}" for part in parts)
    before = weights_of(model)
    set_up_towers(model, changed(**options))
    assert all(one.requires_grad != name.startswith(fixed) for name, one in model.named_parameters())
    run_training(tmp_path, "towered", training=changed(**options))
    after = load_file(tmp_path / "model.safetensors")
    assert all(torch.equal(one, before[name]) == name.startswith(fixed) for name, one in after.items())


def test_more_layers_than_a_tower_has_are_refused(towered):
    with pytest.raises(ValueError, match=r"train_layers = 3, but this Words has 2 layers; lower it\.$"):
        set_up_towers(towered(), changed(train_layers=3))


def test_towers_are_told_to_keep_few_activations(towered):
    for options, kept in (({}, False), ({"gradient_checkpointing": True}, True), ({"freeze": ("text",)}, False)):
        model = towered()
        set_up_towers(model, changed(**options))
        assert model.text.kept == kept


def test_an_average_has_statistics_of_its_own_and_whole_numbers_as_they_are():
    model = torch.nn.BatchNorm1d(2)
    model.register_buffer("places", torch.arange(50))
    average = make_average(model, 0.9)
    with torch.no_grad():
        model.running_mean += 1.0
        for _ in range(20):
            average.update_parameters(model)
    assert torch.equal(average.module.places, torch.arange(50))
    assert average.module.running_mean.tolist() == pytest.approx([1 - 0.9**20] * 2, rel=1e-5)


def test_the_average_is_evaluated_and_kept(run_training, tmp_path, monkeypatch):
    """Compare with the average that this test keeps beside the training."""
    weights, step = [], torch.optim.Adam.step

    def follow(self):
        step(self)
        weights.append([one.detach().clone() for one in self.param_groups[0]["params"]])

    torch.manual_seed(3)
    fresh = build_model("vsepp", **SMALL)
    average = [one.detach().clone() for one in fresh.parameters()]
    monkeypatch.setattr(torch.optim.Adam, "step", follow)
    result, _ = run_training(tmp_path, training=changed(ema=0.8))
    for taken in weights[: 5 * (result["best_epoch"] + 1)]:
        average = [0.8 * old + 0.2 * new for old, new in zip(average, taken, strict=True)]
    kept = load_file(tmp_path / "model.safetensors")
    for (name, _), expected in zip(fresh.named_parameters(), average, strict=True):
        assert_close(kept[name], expected)


def test_learnt_numbers_do_not_decay():
    training = of_loss("sigmoid").model_copy(update={"weight_decay": 0.1})
    learnt, model = LearntTemperature(**training.loss.learnt), build_model("vsepp", **SMALL)
    weights, numbers = make_optimizer(model, training, learnt.parameters()).param_groups
    assert (weights["weight_decay"], numbers["weight_decay"]) == (0.1, 0.0)
    assert numbers["params"] == list(learnt.parameters())


def test_a_model_without_trained_weights_is_refused():
    with pytest.raises(ValueError, match="nothing is trained: towers are frozen"):
        make_optimizer(build_model("vsepp", **SMALL).requires_grad_(False), of_loss("online"))


RANK = 2
LINEAR = ("text.network.blocks.0", "text.network.blocks.1")


@pytest.fixture
def peft():
    return pytest.importorskip("peft")


def weights_of(model):
    return {name: one.clone() for name, one in model.state_dict().items()}


def test_adapters_change_nothing_at_first_and_are_added_last(peft, towered):
    model, captions = towered().eval(), Captions(torch.tensor([[5, 6, 7], [8, 9, 0]]), torch.tensor([3, 2]))
    plain, before = model.encode_captions(captions).vectors, weights_of(model)
    adapt(model.towers["text"], LoRA(rank=RANK, alpha=6.0))
    torch.testing.assert_close(model.encode_captions(captions).vectors, plain)
    torch.testing.assert_close(merged_weights(model), before)
    factors = {}
    for name, one in model.named_parameters():
        if "lora" in name:
            factors[name] = nn.init.normal_(one).detach()
    found = merged_weights(model)
    for layer in LINEAR:
        a, b = (factors[f"{layer}.lora_{factor}.lora.weight"] for factor in "AB")
        assert a.shape[0] == b.shape[1] == RANK
        torch.testing.assert_close(found[f"{layer}.weight"], before[f"{layer}.weight"] + 6.0 / RANK * b @ a)
    again = towered().eval()
    again.load_state_dict(found)
    adapted = model.encode_captions(captions).vectors
    assert not torch.allclose(adapted, plain)
    torch.testing.assert_close(again.encode_captions(captions).vectors, adapted)


def test_adapters_alone_are_trained_and_survive_a_kill(peft, towered, run_training, tmp_path):
    training = changed(lora=LoRA(rank=RANK), ema=0.5)
    whole, _ = run_training(tmp_path / "whole", "towered", training=training)
    torch.manual_seed(3)
    fresh, kept = weights_of(towered()), load_file(tmp_path / "whole" / "model.safetensors")
    assert kept.keys() == fresh.keys()
    moved = {name for name in fresh if not torch.equal(kept[name], fresh[name])}
    inside = {name for name in moved if name.startswith("text.network.")}
    assert inside == {f"{layer}.weight" for layer in LINEAR}
    assert moved - inside
    for name in inside:
        assert torch.linalg.matrix_rank(kept[name] - fresh[name], atol=1e-5) <= RANK
    load_model(tmp_path / "whole" / "model.safetensors")
    kill_and_resume(run_training, tmp_path, 11, whole, name="towered", training=training)


def test_adapters_are_trained_at_the_whole_rate(peft, towered):
    model = towered()
    adapt(model.towers["text"], LoRA(rank=RANK))
    for given, share in ((None, 1), (0.5, 0.5)):
        (_, fresh_share, _), (names, found, _) = groups(model, lora=LoRA(rank=RANK), tower_rate=given)
        assert (fresh_share, found) == (None, share)
        assert names == {f"{layer}.lora_{factor}.lora.weight" for layer in LINEAR for factor in "AB"}


def test_a_tower_without_linear_layers_is_refused(peft):
    tower = Words(None)
    tower.network = nn.Embedding(3, 2)
    with pytest.raises(ValueError, match="lora adapts linear layers, but the Words has none; leave it out"):
        adapt(tower, LoRA(rank=RANK))
