"""LoRA: what is trained, what is published, and a training that was killed."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from aoq.models.base import Captions
from aoq.pipeline.config.training import LoRA
from aoq.pipeline.training.checkpoint import load_model
from aoq.pipeline.training.optimizer import adapt, merged_weights
from tests.training.conftest import changed, kill_and_resume
from tests.training.test_optimizer import Words, groups, towered  # noqa: F401  (a fixture)

RANK = 2
LINEAR = ("text.network.blocks.0", "text.network.blocks.1")


class Bare(Words):
    def __init__(self):
        nn.Module.__init__(self)
        self.network = nn.Embedding(3, 2)


@pytest.fixture(autouse=True)
def peft():
    return pytest.importorskip("peft")


def weights_of(model):
    return {name: one.clone() for name, one in model.state_dict().items()}


def test_adapters_change_nothing_at_first_and_are_added_last(towered):  # noqa: F811
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


def test_adapters_alone_are_trained_and_survive_a_kill(towered, run_training, tmp_path):  # noqa: F811
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


def test_adapters_are_trained_at_the_whole_rate(towered):  # noqa: F811
    model = towered()
    adapt(model.towers["text"], LoRA(rank=RANK))
    for given, share in ((None, 1), (0.5, 0.5)):
        (_, fresh_share, _), (names, found, _) = groups(model, lora=LoRA(rank=RANK), tower_rate=given)
        assert (fresh_share, found) == (None, share)
        assert names == {f"{layer}.lora_{factor}.lora.weight" for layer in LINEAR for factor in "AB"}


def test_a_tower_without_linear_layers_is_refused():
    with pytest.raises(ValueError, match="lora adapts linear layers, and the Bare has none; leave it out"):
        adapt(Bare(), LoRA(rank=RANK))
