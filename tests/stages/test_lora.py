"""LoRA of a tiny ViT and a tiny BERT, trained from photographs: what changes, what is published, and a kill."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from aoq.models import build_model
from aoq.pipeline.stages import train as rounds
from aoq.pipeline.stages.splits import model_options, open_pairs
from aoq.pipeline.training.checkpoint import load_model
from aoq.pipeline.training.trainer import Trainer
from tests.stages.conftest import make_stage
from tests.stages.test_dual_encoder import check_an_interrupted_training, make, vit  # noqa: F401  (fixtures)

RANK = 2
LORA = f"lora = {{rank = {RANK}, alpha = 4}}"


@pytest.fixture(autouse=True)
def peft():
    return pytest.importorskip("peft")


def test_linear_layers_change_by_a_low_rank_and_publish_their_adapters(make, monkeypatch):  # noqa: F811
    """The embeddings of the published weights are those of the adapted model."""
    chain, trainers = make("world", "dataset", first_round=LORA), []
    monkeypatch.setattr(rounds, "Trainer", lambda **given: trainers.append(Trainer(**given)) or trainers[0])
    for stage in ("first_round", "embeddings"):
        make_stage(chain, stage)
    (adapted,) = trainers[0].models
    assert any("lora" in name for name, _ in adapted.eval().named_parameters())
    published = load_model(chain["first_round"].path / "model.safetensors")
    fresh = build_model("dual_encoder", **model_options(chain))
    fresh.load_pretrained()
    for side, tower in fresh.towers.items():
        after = published.towers[side].network.state_dict()
        assert after.keys() == tower.network.state_dict().keys()
        changes = {name: after[name] - one for name, one in tower.network.state_dict().items()}
        changed = {name for name, change in changes.items() if change.any()}
        layers = {name for name, layer in tower.network.named_modules() if type(layer) is nn.Linear}
        assert changed == {f"{name}.weight" for name in layers if not name.startswith("pooler")}
        for name in changed:
            assert torch.linalg.matrix_rank(changes[name], atol=1e-5) <= RANK
    pairs, captions = open_pairs(chain, "train"), np.arange(30)
    with torch.inference_mode():
        of_images = adapted.encode_images(pairs.images(np.arange(48))).vectors
        of_captions = adapted.encode_captions(pairs.captions(captions)).vectors
    folder = chain["embeddings"].path
    np.testing.assert_allclose(np.load(folder / "images.npy"), of_images, atol=1e-5)
    np.testing.assert_allclose(np.load(folder / "captions.npy")[captions], of_captions, atol=1e-5)


def test_an_interrupted_training_ends_at_the_same_weights(make, monkeypatch):  # noqa: F811
    check_an_interrupted_training(make("world", "dataset", epochs=2, first_round=LORA), monkeypatch)
