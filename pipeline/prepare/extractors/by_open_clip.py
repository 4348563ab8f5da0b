"""Encoders of open_clip."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from aoq.models.towers.described import seen_by_open_clip
from aoq.models.towers.preprocessing import Preprocessing
from aoq.pipeline.extras import import_extra
from aoq.pipeline.loading import loading
from aoq.pipeline.prepare.extractors.extractor import Tokens
from aoq.pipeline.prepare.extractors.grid import GridExtractor


def load_open_clip(model: str) -> tuple[str, Any, Preprocessing, Callable[..., torch.Tensor]]:
    """Load name, network, preprocessing and tokeniser of NAME/TAG, as in ViT-B-32/laion2b_s34b_b79k; NAME/FILE;
    or a folder with `open_clip_config.json`."""
    name = f"open_clip:{model}"
    with loading(name, model):
        library = import_extra("open_clip", "open-clip", name)
        is_folder = Path(model).is_dir()
        architecture, _, tag = (f"local-dir:{Path(model).absolute()}", "", "") if is_folder else model.partition("/")
        if not is_folder and not tag:
            known = ", ".join(library.list_pretrained_tags_by_model(architecture)) or "none"
            raise ValueError(f"give the weights' tag after a slash; tags of {architecture}: {known}")
        network = library.create_model(architecture, tag or None)
        return (
            name,
            network,
            seen_by_open_clip(name, network.visual.preprocess_cfg),
            library.get_tokenizer(architecture),
        )


def open_open_clip(model: str, tokens: Tokens) -> GridExtractor:
    """Open a model's image encoder (`load_open_clip`)."""
    name, network, seen, _ = load_open_clip(model)
    visual = network.visual
    if tokens == "pooled":
        return GridExtractor.build(name, seen, visual, visual)

    def encode(images: torch.Tensor) -> torch.Tensor:
        made = visual.forward_intermediates(images, indices=1, normalize_intermediates=True, intermediates_only=True)
        maps: torch.Tensor = made["image_intermediates"][-1]
        return maps

    return GridExtractor.build(name, seen, visual, encode)
