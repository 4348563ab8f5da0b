"""A dual encoder of a tiny ViT and a tiny BERT, trained from photographs through both rounds."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from aoq.pipeline.evaluation.evaluate import evaluate
from aoq.pipeline.planning.planner import plan
from aoq.pipeline.produce import PRODUCERS
from aoq.pipeline.produce.data import open_pairs
from aoq.pipeline.training import resumable
from aoq.pipeline.training.checkpoint import load_model
from tests.produce.conftest import ENGINE

EXPERIMENT = """
[dataset]
tokeniser = "{text}"
{data}

[model]
name = "dual_encoder"
embedding_size = 16
image_tower = "{image}"
text_tower = "{text}"
image_pooling = "cls"
text_pooling = "mean"

[first_round]
epochs = {epochs}
batch_size = 16
learning_rate = 3e-3
tower_rate = 1.0
augment = ["crop", "flip"]
loss.name = "infonce"

[mining]
h_captions = 9
h_images = 4

[second_round]
epochs = 1
batch_size = 16
learning_rate = 3e-3
{second_round}
loss.name = "LOSS"
"""
DRAWN = "demo = {images = 48, dev_images = 12, pictures = true}"
MINED = ["world", "dataset", "first_round", "embeddings", "hard_negatives"]


@pytest.fixture(scope="session")
def vit(tmp_path_factory):
    """The name of a tiny ViT's folder."""
    library, folder = pytest.importorskip("transformers"), tmp_path_factory.mktemp("vit")
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2}
    torch.manual_seed(0)
    config = library.ViTConfig(**sizes, image_size=48, patch_size=8)
    library.ViTModel(config, add_pooling_layer=False).save_pretrained(folder)
    seen = {"size": {"height": 48, "width": 48}, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    (folder / "preprocessor_config.json").write_text(json.dumps(seen))
    return f"transformers:{folder}"


@pytest.fixture
def make(bert, vit, tmp_path):
    """Plan the experiment and make stages of it."""

    def run(*stages, loss="adapoffquin", epochs=1, second_round="", data=DRAWN, root=tmp_path):
        path = tmp_path / "dual.toml"
        values = {"image": vit, "text": f"transformers:{bert[2]}", "epochs": epochs, "data": data}
        text = EXPERIMENT.format(**values, second_round=second_round).replace("LOSS", loss)
        path.write_text(text)
        chain = plan(str(path), data_root=root, artifact_root=tmp_path / "artifacts")
        for stage in stages:
            with chain[stage].building() as build:
                if build is not None:
                    PRODUCERS[stage](chain, build, ENGINE)
        return chain

    return run


@pytest.mark.parametrize("loss", ["adapoffquin", "adapinfonce"])
def test_both_rounds_from_photographs(make, loss):
    chain = make(*MINED, "second_round", "evaluation", loss=loss)
    vectors = np.load(chain["embeddings"].path / "images.npy")
    assert vectors.shape == (48, 16)
    model = load_model(chain["first_round"].path / "model.safetensors")
    with torch.inference_mode():
        seen = open_pairs(chain, "train").images(np.arange(48))
        assert seen.features.shape == (48, 48, 48, 3)
        np.testing.assert_allclose(model.encode_images(seen).vectors, vectors, atol=1e-5)
    measured = evaluate(
        load_model(chain["second_round"].path / "model.safetensors"),
        chain.folder,
        "dev",
        vocabulary=chain["dataset"].path / "tokeniser",
    )
    assert measured["rsum"] == pytest.approx(chain["evaluation"].manifest()["metrics"]["rsum"])


def test_the_loss_falls(make):
    chain = make(*MINED[:3], epochs=6)
    lines = [json.loads(line) for line in (chain["first_round"].path / "metrics.jsonl").read_text().splitlines()]
    losses = [line["retrieval_loss"] for line in lines if "retrieval_loss" in line]
    assert losses[-1] < 0.9 * losses[0]


def test_an_interrupted_training_ends_at_the_same_weights(make, monkeypatch):
    monkeypatch.setattr(resumable, "LOG_STEPS", 2)
    engine = replace(ENGINE, checkpoint_steps=4)
    chain = make("world", "dataset", epochs=2)
    checkpoint, taken = resumable.Resumable.checkpoint, []

    def killed(self):
        checkpoint(self)
        taken.append(self.taken)
        if len(taken) == 3:
            raise KeyboardInterrupt

    def train():
        with chain["first_round"].building() as build:
            PRODUCERS["first_round"](chain, build, engine)
        return chain["first_round"].manifest(), (chain["first_round"].path / "model.safetensors").read_bytes()

    whole, weights = train()
    chain["first_round"].path.rename(chain["first_round"].path.with_name("whole"))
    monkeypatch.setattr(resumable.Resumable, "checkpoint", killed)
    with pytest.raises(KeyboardInterrupt):
        train()
    resumed, again = train()
    assert taken[3] > taken[2]
    assert resumed["final_weights_sha256"] == whole["final_weights_sha256"]
    assert again == weights
