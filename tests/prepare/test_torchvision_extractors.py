"""Extractors of libraries that need torchvision, which are tested where they are installed."""

from __future__ import annotations

import json
from importlib.util import find_spec

import numpy as np
import pytest
import torch

from aoq.pipeline.prepare.extractors import open_extractor
from tests.prepare.conftest import picture

CPU = torch.device("cpu")
_operators = torch.library.Library("torchvision", "FRAGMENT")


@pytest.fixture(scope="module", autouse=True)
def torchvision():
    """Imported; of another build than torch, it has no operators, of which these libraries need the names alone."""
    if find_spec("torchvision") is None:
        pytest.skip("needs torchvision")
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            _operators.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


@pytest.fixture(scope="module")
def timm():
    return pytest.importorskip("timm")


@pytest.fixture(scope="module")
def open_clip():
    return pytest.importorskip("open_clip")


def features_of(extractor, image):
    pixels = torch.from_numpy(extractor.preprocessing.pixels(image).copy())[None]
    return extractor.features(pixels, CPU)[0]


def saved(timm, folder, name, **options):
    from safetensors.torch import save_file

    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=0, **options).eval()
    folder.mkdir()
    save_file(model.state_dict(), folder / "model.safetensors")
    size = model.pretrained_cfg["input_size"] if "img_size" not in options else [3, options["img_size"]] * 2
    config = {
        "input_size": [3, *size[1:3]] if "img_size" not in options else [3, options["img_size"], options["img_size"]]
    }
    config |= {"mean": [0.5, 0.4, 0.3], "std": [0.2, 0.3, 0.4], "crop_pct": 0.8, "interpolation": "bicubic"}
    content = {"architecture": name, "num_classes": 0, "model_args": options, "pretrained_cfg": config}
    (folder / "config.json").write_text(json.dumps(content))
    return model, f"timm:{folder}"


TINY = {"embed_dim": 16, "depth": 1, "num_heads": 2}


@pytest.mark.parametrize(
    ("name", "options", "grid"),
    [
        ("vit_tiny_patch16_224", {"img_size": 32, **TINY}, (2, 2)),
        ("vit_small_patch14_reg4_dinov2", {"img_size": 28, **TINY}, (2, 2)),
        ("swin_tiny_patch4_window7_224", {"embed_dim": 8, "depths": [1, 1, 1, 1], "num_heads": [1, 1, 1, 1]}, (7, 7)),
        ("resnet10t", {}, (6, 6)),
    ],
)
def test_timms_models_and_its_own_preprocessing(timm, tmp_path, name, options, grid):
    model, named = saved(timm, tmp_path / "model", name, **options)
    extractor = open_extractor(named)
    assert extractor.grid == grid
    image = picture(0, 90, 60)
    config = timm.data.resolve_model_data_config(
        model, pretrained_cfg=json.loads((tmp_path / "model" / "config.json").read_text())["pretrained_cfg"]
    )
    seen = timm.data.create_transform(**config, is_training=False)(image)[None]
    with torch.inference_mode():
        found = model.forward_features(seen)[0]
        vector = model(seen)
    if found.ndim == 3:
        found = found.flatten(1).T if found.shape[0] == extractor.dims else found.flatten(0, 1)
    np.testing.assert_allclose(features_of(extractor, image), found[-grid[0] * grid[1] :], atol=2e-2)
    np.testing.assert_allclose(features_of(open_extractor(named, "pooled"), image), vector, atol=2e-2)


def test_open_clips_models_and_their_own_preprocessing(open_clip, tmp_path):
    torch.manual_seed(0)
    config = {
        "model_cfg": {
            "embed_dim": 6,
            "vision_cfg": {"image_size": 32, "layers": 1, "width": 64, "patch_size": 8},
            "text_cfg": {"context_length": 8, "vocab_size": 50, "width": 16, "heads": 2, "layers": 1},
        },
        "preprocess_cfg": {"mean": [0.5, 0.4, 0.3], "std": [0.2, 0.3, 0.4]},
    }
    model = open_clip.CLIP(**config["model_cfg"]).eval()
    (tmp_path / "open_clip_config.json").write_text(json.dumps(config))
    torch.save(model.state_dict(), tmp_path / "open_clip_pytorch_model.bin")
    _, _, transform = open_clip.create_model_and_transforms(f"local-dir:{tmp_path}")
    image = picture(0, 90, 60)
    with torch.inference_mode():
        found = model.visual.forward_intermediates(transform(image)[None], normalize_intermediates=True)
    maps = found["image_intermediates"][-1][0]
    extractor = open_extractor(f"open_clip:{tmp_path}")
    assert (extractor.grid, extractor.dims) == ((4, 4), 64)
    np.testing.assert_allclose(features_of(extractor, image), maps.flatten(1).T, atol=5e-3)
    pooled = open_extractor(f"open_clip:{tmp_path}", "pooled")
    np.testing.assert_allclose(features_of(pooled, image), found["image_features"], atol=5e-3)


def test_open_clip_needs_a_tag_and_names_those_there_are(open_clip):
    with pytest.raises(ValueError, match=r"after a slash; tags of ViT-B-32: openai, .*\); check the name"):
        open_extractor("open_clip:ViT-B-32")
