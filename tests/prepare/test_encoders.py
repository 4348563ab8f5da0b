"""Pretrained encoders as teachers, on a tiny CLIP that is saved in a folder."""

import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from aoq.pipeline.engine import products_in
from aoq.pipeline.prepare.extractor import GridExtractor
from aoq.pipeline.prepare.extractors import open_encoder
from aoq.pipeline.stages.plan import plan
from aoq.pipeline.tables.table import read_table
from tests.cli.conftest import run
from tests.prepare import tiny
from tests.prepare.conftest import encoded, picture
from tests.prepare.test_extractors import normalised
from tests.stages.conftest import make_stage
from tests.training.test_precision import STATES, arithmetic

EXPERIMENT = """
dataset = {folder = 'data'}
teacher.encoder = "transformers:ENCODER"
model = {name = "scan", embedding_size = 8, word_size = 8}
mining = {h_captions = 5, h_images = 3}
second_round = {epochs = 1, batch_size = 8, loss.name = "adapoffquin"}
"""


@pytest.fixture
def data(photos, prepared):
    """The photographs as a dataset folder, whose features play no part."""
    return prepared(photos, "data", thumbnails=False)


def expected(clip, photos, data):
    """Encode photograph by photograph and caption by caption: the definition."""
    model, tokeniser, _ = clip
    images, captions = [], []
    with torch.inference_mode():
        for name in (data / "train_ids.txt").read_text().split():
            seen = normalised(Image.open(photos.parent / name))
            images.append(model.visual_projection(model.vision_model(seen).pooler_output))
        for caption in (data / "train_caps.txt").read_text().splitlines():
            tokens = tokeniser(caption, return_tensors="pt", truncation=True, max_length=8)
            captions.append(model.text_projection(model.text_model(**tokens).pooler_output))
    return [torch.nn.functional.normalize(torch.cat(side)).numpy() for side in (images, captions)]


def test_embed_gives_the_models_own_unit_vectors(clip, photos, data, tmp_path):
    command = "embed", data, tmp_path / "vectors", "--encoder", f"transformers:{clip[2]}", "--threads", 1
    shown = run(*command)
    assert "16 images and 32 captions, 6 numbers each" in shown.stdout
    assert {path.name for path in (tmp_path / "vectors").iterdir()} == {"images.npy", "captions.npy"}
    for name, vectors in zip(("images", "captions"), expected(clip, photos, data), strict=True):
        written = np.load(tmp_path / "vectors" / f"{name}.npy")
        np.testing.assert_allclose(written, vectors, atol=1e-5)
        assert written.dtype == np.float32
    (photos.parent / "03.png").write_bytes(encoded(picture(99)))
    shutil.rmtree(tmp_path / "vectors")
    refused = run(*command, code=1)
    assert "03.png: was changed since the folder was prepared" in refused.stderr


def test_what_the_caller_has_set_reaches_no_vector(clip, photos, prepared, tmp_path, monkeypatch):
    """The same bytes, fingerprints of weights included, and the encoder at work in float32."""
    encode, seen = GridExtractor.encoded, []
    monkeypatch.setattr(GridExtractor, "encoded", lambda *given: seen.append(arithmetic()) or encode(*given))

    def vectors(name):
        prepared(photos, f"{name} means", thumbnails=False)
        made = prepared(photos, f"{name} clip", extractor=f"transformers:{clip[2]}", thumbnails=False)
        run("embed", made, tmp_path / name, "--encoder", f"transformers:{clip[2]}", "--threads", 1)
        return [path.read_bytes() for path in sorted(tmp_path.glob(f"{name}*/*.[nj]*"))]

    expected = vectors("plain")
    for name, change in STATES.items():
        with products_in("float32"):  # which puts back what is changed
            change()
            assert vectors(name) == expected
    in_float32 = "highest", False, torch.float32, [False, False], ["ieee"] * 9
    assert seen == [in_float32] * len(seen)


@pytest.fixture
def planned(data, tmp_path):
    """Plan an experiment on the prepared folder, with an encoder as teacher."""

    def run(encoder, override=""):
        file, roots = tmp_path / "own.toml", {"data_root": tmp_path, "artifact_root": tmp_path / "artifacts"}
        file.write_text(EXPERIMENT.replace("ENCODER", str(encoder)))
        return plan(str(file), **roots, override=override)

    return run


def test_an_encoder_is_a_teacher(clip, photos, data, planned, tmp_path):
    chain = planned(clip[2])
    assert list(chain.stages) == ["dataset", "embeddings", "hard_negatives", "control", "second_round", "evaluation"]
    roots = "--data-root", tmp_path, "--artifact-root", tmp_path / "artifacts"
    estimate = run("estimate", "--experiment", tmp_path / "own.toml", *roots, "--json")
    assert json.loads(estimate.stdout)["shape"]["dimensions"] == 6
    for stage in ("dataset", "embeddings", "hard_negatives"):
        make_stage(chain, stage)
    assert "encoder" in chain["embeddings"].manifest()["inputs"]
    table = read_table(chain["hard_negatives"].path / "table")
    assert table.manifest["teacher"]["model"] == f"transformers:{clip[2]}"
    images, captions = expected(clip, photos, data)
    scores, owner = images @ captions.T, np.repeat(np.arange(16), 2)
    for image, negatives in enumerate(table.i2t.negative_ids):
        others = np.flatnonzero(owner != image)
        np.testing.assert_allclose(np.sort(scores[image, negatives]), np.sort(scores[image, others])[-5:], atol=1e-5)
    part = planned(clip[2], "dataset.train_images=9")
    for stage in ("dataset", "embeddings"):
        make_stage(part, stage)
    assert len(np.load(part["embeddings"].path / "images.npy")) == 9


def test_other_weights_in_the_folder_are_another_table(clip, planned, tmp_path):
    folder = shutil.copytree(clip[2], tmp_path / "clip")
    key = planned(folder)["embeddings"].key
    (folder / "model.safetensors").write_bytes(b"others")
    assert planned(folder)["embeddings"].key != key


def test_what_is_no_encoder_of_images_and_texts_is_refused(tmp_path):
    for name, message in (
        ("resnet", "there is no encoder of images and texts 'resnet'; known are transformers:"),
        ("transformers:/nowhere", "transformers:/nowhere cannot be loaded"),
        (tiny.transformers(tmp_path), "encodes no texts; choose one that does"),
    ):
        with pytest.raises(ValueError, match=message):
            open_encoder(name)
