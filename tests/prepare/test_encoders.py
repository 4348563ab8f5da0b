"""Pretrained encoders as teachers, on a tiny CLIP that is saved in a folder."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from PIL import Image

from aoq.pipeline.cli import main
from aoq.pipeline.engine import Engine
from aoq.pipeline.prepare.encoders import open_encoder
from aoq.pipeline.stages.plan import MAKERS, plan
from aoq.pipeline.tables.table import read_table
from tests.prepare.conftest import SEEN, TINY, encoded, picture
from tests.prepare.test_extractors import normalised


@pytest.fixture
def run():
    return lambda *arguments: CliRunner().invoke(main, [*map(str, arguments)])


@pytest.fixture
def prepared(photos, tmp_path, run):
    """The photographs as a dataset folder, whose features play no part."""
    assert run("prepare", photos, tmp_path / "data", "--threads", 1, "--no-thumbnails").exit_code == 0
    return tmp_path / "data"


def expected(clip, photos, prepared, split="train"):
    """Encode photograph by photograph and caption by caption: the definition."""
    model, tokeniser, _ = clip
    images, captions = [], []
    with torch.inference_mode():
        for name in (prepared / f"{split}_ids.txt").read_text().split():
            seen = normalised(Image.open(photos.parent / name))
            images.append(model.visual_projection(model.vision_model(seen).pooler_output))
        for caption in (prepared / f"{split}_caps.txt").read_text().splitlines():
            tokens = tokeniser(caption, return_tensors="pt", truncation=True, max_length=8)
            captions.append(model.text_projection(model.text_model(**tokens).pooler_output))
    return [torch.nn.functional.normalize(torch.cat(side)).numpy() for side in (images, captions)]


def test_embed_gives_the_models_own_unit_vectors(clip, photos, prepared, tmp_path, run):
    made = run("embed", prepared, tmp_path / "vectors", "--encoder", f"transformers:{clip[2]}", "--threads", 1)
    assert "16 images and 32 captions, 6 numbers each" in made.stdout, made.output
    assert {path.name for path in (tmp_path / "vectors").iterdir()} == {"images.npy", "captions.npy"}
    for name, vectors in zip(("images", "captions"), expected(clip, photos, prepared), strict=True):
        found = np.load(tmp_path / "vectors" / f"{name}.npy")
        np.testing.assert_allclose(found, vectors, atol=1e-5)
        assert found.dtype == np.float32


@pytest.fixture
def planned(prepared, tmp_path):
    """Plan an experiment on the prepared folder, with an encoder as teacher."""

    def run(encoder, dataset="folder = 'data'"):
        (tmp_path / "own.toml").write_text(
            f"""
dataset = {{{dataset}}}
teacher.encoder = "transformers:{encoder}"
model = {{name = "scan", embedding_size = 8, word_size = 8}}
mining = {{h_captions = 5, h_images = 3}}
second_round = {{epochs = 1, batch_size = 8, loss.name = "adapoffquin"}}
"""
        )
        return plan(str(tmp_path / "own.toml"), data_root=tmp_path, artifact_root=tmp_path / "artifacts")

    return run


def make(chain, *stages):
    for stage in stages:
        with chain[stage].building() as build:
            MAKERS[stage](chain, build, Engine("cpu", threads=1))


def test_an_encoder_is_a_teacher(clip, photos, prepared, planned, tmp_path, run):
    chain = planned(clip[2])
    assert list(chain.stages) == ["dataset", "embeddings", "hard_negatives", "control", "second_round", "evaluation"]
    roots = "--data-root", tmp_path, "--artifact-root", tmp_path / "artifacts"
    estimated = run("estimate", "--experiment", tmp_path / "own.toml", *roots, "--json")
    assert json.loads(estimated.stdout)["shape"]["dimensions"] == 6
    make(chain, "dataset", "embeddings", "hard_negatives", "second_round")
    table = read_table(chain["hard_negatives"].path / "table")
    assert table.manifest["teacher"]["model"] == f"transformers:{clip[2]}"
    images, captions = expected(clip, photos, prepared)
    scores, owner = images @ captions.T, np.repeat(np.arange(16), 2)
    for image, found in enumerate(table.i2t.negative_ids):
        others = np.flatnonzero(owner != image)
        np.testing.assert_allclose(np.sort(scores[image, found]), np.sort(scores[image, others])[-5:], atol=1e-5)
    shown = run("results", tmp_path / "own.toml", *roots)
    assert "round two" in shown.stdout
    assert "\nteacher" not in shown.stdout


def test_a_photograph_that_was_changed_is_named(clip, photos, prepared, tmp_path, run):
    (photos.parent / "03.png").write_bytes(encoded(picture(99)))
    found = run("embed", prepared, tmp_path / "vectors", "--encoder", f"transformers:{clip[2]}")
    assert found.exit_code == 1
    assert "03.png: was changed since the folder was prepared" in found.stderr


def test_a_part_of_the_split_is_encoded_alone(clip, planned):
    chain = planned(clip[2], "folder = 'data', train_images = 9")
    make(chain, "dataset", "embeddings")
    assert len(np.load(chain["embeddings"].path / "images.npy")) == 9
    assert "encoder" in chain["embeddings"].manifest()["inputs"]


def test_other_weights_in_the_folder_are_another_table(clip, planned, tmp_path):
    folder = shutil.copytree(clip[2], tmp_path / "clip")
    key = planned(folder)["embeddings"].key
    (folder / "model.safetensors").write_bytes(b"others")
    assert planned(folder)["embeddings"].key != key


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resnet", "there is no encoder of images and texts 'resnet'; known are transformers:"),
        ("timm:resnet18", "there is no encoder of images and texts 'timm:resnet18'"),
        ("transformers:/nowhere", "transformers:/nowhere cannot be loaded"),
    ],
)
def test_what_is_no_encoder_is_refused(name, message):
    with pytest.raises(ValueError, match=message):
        open_encoder(name)


def test_an_encoder_without_texts_is_refused(tmp_path):
    transformers = pytest.importorskip("transformers")
    transformers.ViTModel(transformers.ViTConfig(**TINY, image_size=32, patch_size=8)).save_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"size": {"height": 32, "width": 32}} | SEEN))
    with pytest.raises(ValueError, match="encodes no texts; choose one that does"):
        open_encoder(f"transformers:{tmp_path}")
