"""Encoders of timm."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch

from aoq.pipeline.extras import import_extra
from aoq.pipeline.prepare.extractors.extractor import Tokens
from aoq.pipeline.prepare.extractors.grid import GridExtractor
from aoq.pipeline.prepare.extractors.loading import loading
from aoq.pipeline.prepare.extractors.preprocessing import Preprocessing


def open_timm(model: str, tokens: Tokens) -> GridExtractor:
    """A model of timm by its name, or in a folder with its `config.json`."""
    name = f"timm:{model}"
    with loading(name, model):
        library = import_extra("timm", "timm", name)
        local = f"local-dir:{Path(model).absolute()}" if Path(model).is_dir() else model
        network = library.create_model(local, pretrained=True, num_classes=0).eval()
        seen = _seen(name, library.data.resolve_model_data_config(network))
    if tokens == "pooled":
        return GridExtractor.build(name, seen, network, network)
    is_last = getattr(network, "output_fmt", "NCHW") == "NHWC"

    def encode(images: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = network.forward_features(images)
        return found.permute(0, 3, 1, 2) if is_last and found.ndim == 4 else found

    return GridExtractor.build(name, seen, network, encode, grid=_grid(network))


def _grid(network: Any) -> tuple[int, int] | None:
    """That of a transformer's patches; maps tell their own."""
    found = getattr(getattr(network, "patch_embed", None), "grid_size", None)
    is_flat = hasattr(network, "num_prefix_tokens")
    return (int(found[0]), int(found[1])) if found is not None and is_flat else None


def _seen(name: str, config: dict[str, Any]) -> Preprocessing:
    _, height, width = config["input_size"]
    scaled = math.floor(height / config["crop_pct"]), math.floor(width / config["crop_pct"])
    if config["crop_mode"] == "border" or (config["crop_mode"] == "center" and height != width):
        raise ValueError(f"{name} pads images ({config['crop_mode']}), which is not supported")
    resize = scaled if config["crop_mode"] == "squash" else scaled[0]
    return Preprocessing(height, width, resize, tuple(config["mean"]), tuple(config["std"]), config["interpolation"])
