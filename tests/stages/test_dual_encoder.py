"""A dual encoder of a tiny ViT and a tiny BERT, trained from photographs through both rounds."""

import json
import math
import multiprocessing
import re
import shutil
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from aoq.pipeline.data.demo import write_demo_world
from aoq.pipeline.evaluation.evaluate import evaluate
from aoq.pipeline.prepare.photographs import write_demo_pictures
from aoq.pipeline.stages.splits import open_pairs
from aoq.pipeline.training.checkpoint import load_model
from tests.prepare.conftest import save_clip
from tests.stages.conftest import ENGINE, keys_of, make_stage

EXPERIMENT = """
[dataset]
tokeniser = "{text_tower}"
{data}

[model]
name = "dual_encoder"
embedding_size = 16
image_tower = "{image_tower}"
text_tower = "{text_tower}"
image_pooling = "cls"
text_pooling = "mean"

[first_round]
epochs = {epochs}
batch_size = 16
learning_rate = 3e-3
tower_rate = 1.0
augment = ["crop", "flip"]
{first_round}
loss.name = "infonce"

[mining]
h_captions = 9
h_images = 4

[second_round]
epochs = 1
batch_size = 16
learning_rate = 3e-3
loss.name = "adapoffquin"
"""
DRAWN = "demo = {images = 48, dev_images = 12, pictures = true}"


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
def make(make, bert, vit):
    """Plan the experiment and make stages of it."""
    usual = {"image_tower": vit, "text_tower": f"transformers:{bert[2]}", "epochs": 1, "first_round": "", "data": DRAWN}
    usual["text"] = EXPERIMENT
    return lambda *stages, name="dual", **parts: make(name, *stages, **usual | parts)


def test_both_rounds_from_photographs(make):
    chain = make("world", "mining", "second_round", "evaluation")
    vectors = np.load(chain["embeddings"].path / "images.npy")
    assert vectors.shape == (48, 16)
    model = load_model(chain["first_round"].path / "model.safetensors")
    with torch.inference_mode():
        seen = open_pairs(chain, "train").images(np.arange(48))
        assert seen.features.shape == (48, 48, 48, 3)
        np.testing.assert_allclose(model.encode_images(seen).vectors, vectors, atol=1e-5)
    student = load_model(chain["second_round"].path / "model.safetensors")
    measured = evaluate(student, chain.folder, "dev", vocabulary=chain["dataset"].path / "tokeniser")
    assert measured["rsum"] == pytest.approx(chain["evaluation"].manifest()["metrics"]["rsum"])


def test_a_pair_starts_at_its_own_temperature(make, tmp_path):
    """1 / 20, where the loss would start at 0.07."""
    model, _ = save_clip(tmp_path / "pair", model_max_length=8)
    torch.nn.init.constant_(model.logit_scale, math.log(20))
    model.save_pretrained(tmp_path / "pair")
    towers = dict.fromkeys(("image_tower", "text_tower"), f"transformers:{tmp_path / 'pair'}")
    text = re.sub('(image|text)_pooling = ".*"', r'\1_pooling = "native"', EXPERIMENT)
    text = text.replace("embedding_size = 16", "embedding_size = 6\nproject = false")
    loss = 'loss = {{name = "infonce", temperature = "pair"}}'
    text = text.replace('loss.name = "infonce"', loss).replace("learning_rate = 3e-3", "learning_rate = 1e-6")
    chain = make("world", "dataset", "first_round", text=text, **towers)
    learnt = chain["first_round"].manifest().get("learnt_by_epoch")
    assert learnt == [{"temperature": pytest.approx(1 / 20, rel=1e-4)}]
    for change in ('image_pooling = "cls"', 'text_pooling = "mean"', "project = true"):
        with pytest.raises(ValueError, match=r'\[first_round\] loss.temperature = "pair" needs a pretrained pair: one'):
            make(text=re.sub(f"{change.split()[0]} = .*", change, text), **towers)


def test_a_model_of_fragments_trains_on_patches_and_pieces(make, tmp_path):
    """SCAN trains on the dual encoder's table, with attention from words to patches."""
    make("world", "mining")
    text = EXPERIMENT[: EXPERIMENT.index("[first_round]")] + EXPERIMENT[EXPERIMENT.index("[second_round]") :]
    for line in ('image_pooling = "cls"\n', 'text_pooling = "mean"\n'):
        text = text.replace(line, "")
    constraints = "[second_round.constraints]\nccr = {{weight = 0.1, margin = 0.1}}\n"
    text = f'teacher = "{tmp_path}/dual.toml"\n{text.replace("dual_encoder", "scan")}\n{constraints}'
    chain = make("second_round", "evaluation", name="scan", text=text)
    assert chain["evaluation"].manifest()["metrics"]["rsum"] > 0


@pytest.mark.parametrize(
    "engine", [{"workers": 2}, pytest.param({"workers": 2, "processes": 2}, marks=pytest.mark.slow)]
)
def test_weights_do_not_depend_on_who_decodes(make, engine):
    """Its own thread, or two other processes; each of two that train together has two."""
    chain, manifests = make("world", "dataset"), []
    for options in (engine | {"workers": 0}, engine):
        make_stage(chain, "first_round", replace(ENGINE, **options))
        manifests.append(chain["first_round"].manifest())
        chain["first_round"].path.rename(chain["first_round"].path.with_name(f"made {len(manifests)}"))
    alone, other = manifests
    assert other["processes"] == engine.get("processes", 1)
    assert other["final_weights_sha256"] == alone["final_weights_sha256"]
    assert not multiprocessing.active_children()


def test_keys_are_of_the_photographs_and_of_no_others(make, tmp_path):
    """Photographs that change after the plan are noticed; a folder without any is refused when it is planned."""
    data, folder = {"data": 'folder = "drawn"', "root": tmp_path}, tmp_path / "drawn"
    write_demo_world(folder, images=40, dev_images=12, seed=0)
    write_demo_pictures(folder)
    before, chain, dev = keys_of(make(**data)), make("dataset", **data), folder / "dev_images.parquet"
    images = pq.read_table(dev)
    pq.write_table(images.set_column(1, "path", pa.array(["elsewhere.png"] * len(images))), dev)
    assert keys_of(make(**data)) == before
    shutil.copy(folder / "train_images.parquet", dev)
    after = keys_of(make(**data))
    assert all(after[stage] != key for stage, key in before.items())
    with pytest.raises(ValueError, match="a photograph of 'dev' was changed after the run was planned"):
        open_pairs(chain, "dev")
    dev.unlink()
    with pytest.raises(ValueError, match=r"has no dev_images.parquet, .*`aoq prepare SOURCE FOLDER --pack` makes such"):
        make(**data)


def test_an_image_tower_that_changed_after_the_plan_is_noticed(make, vit, tmp_path):
    moved = shutil.copytree(vit.removeprefix("transformers:"), tmp_path / "moved")
    chain = make("world", "dataset", image_tower=f"transformers:{moved}")
    (moved / "config.json").write_text((moved / "config.json").read_text() + "\n")
    with pytest.raises(ValueError, match=rf"{moved} was changed after the run was planned; run again"):
        make_stage(chain, "first_round")
