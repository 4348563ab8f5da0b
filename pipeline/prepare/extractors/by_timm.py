"""Encoders of timm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from aoq.models.towers.described import seen_by_timm
from aoq.pipeline.extras import import_extra
from aoq.pipeline.loading import loading
from aoq.pipeline.prepare.extractors.extractor import Tokens
from aoq.pipeline.prepare.extractors.grid import GridExtractor


def open_timm(model: str, tokens: Tokens) -> GridExtractor:
    """Open a model of timm by its name, or in a folder with its `config.json`."""
    name = f"timm:{model}"
    with loading(name, model):
        library = import_extra("timm", "timm", name)
        local = f"local-dir:{Path(model).absolute()}" if Path(model).is_dir() else model
        network = library.create_model(local, pretrained=True, num_classes=0).eval()
        seen = seen_by_timm(name, library.data.resolve_model_data_config(network))
    if tokens == "pooled":
        return GridExtractor.build(name, seen, network, network)
    is_last = getattr(network, "output_fmt", "NCHW") == "NHWC"

    def encode(images: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = network.forward_features(images)
        return found.permute(0, 3, 1, 2) if is_last and found.ndim == 4 else found

    return GridExtractor.build(name, seen, network, encode, grid=_grid(network))


def _grid(network: Any) -> tuple[int, int] | None:
    """Grid of a transformer's patches; maps have their own."""
    found = getattr(getattr(network, "patch_embed", None), "grid_size", None)
    is_flat = hasattr(network, "num_prefix_tokens")
    return (int(found[0]), int(found[1])) if found is not None and is_flat else None
