"""Encoders of Hugging Face transformers: CLIP, SigLIP, DINOv2 and v3, ViT, Swin, ConvNeXt, …"""

from __future__ import annotations

from typing import Any

import torch

from aoq.models.towers.described import seen_by_transformers
from aoq.pipeline.extras import import_extra
from aoq.pipeline.loading import loading
from aoq.pipeline.prepare.extractors.extractor import Tokens
from aoq.pipeline.prepare.extractors.grid import GridExtractor


def open_transformers(model: str, tokens: Tokens) -> GridExtractor:
    """Open the image encoder of a model on the hub, or in a folder."""
    name = f"transformers:{model}"
    library = import_extra("transformers", "transformers", name)
    from_config = import_extra("transformers.image_processing_base", "transformers", name)
    with loading(name, model):
        config, _ = from_config.ImageProcessingMixin.get_image_processor_dict(model)
        whole = library.AutoModel.from_pretrained(model, dtype=torch.float32)
    seen = seen_by_transformers(name, config)
    if tokens == "patches":
        vision = getattr(whole, "vision_model", whole)
        patch: Any = getattr(vision.config, "patch_size", None)
        # Hierarchical encoders merge their first patches, so their grid is that of their maps.
        is_flat = isinstance(patch, int) and not hasattr(vision.config, "depths")
        grid = (seen.height // patch, seen.width // patch) if is_flat else None
        return GridExtractor.build(name, seen, vision, lambda x: vision(pixel_values=x).last_hidden_state, grid=grid)
    if hasattr(whole, "get_image_features"):
        return GridExtractor.build(name, seen, whole, lambda x: _vector(whole.get_image_features(pixel_values=x)))
    return GridExtractor.build(name, seen, whole, lambda x: _vector(whole(pixel_values=x)))


def _vector(output: Any) -> torch.Tensor:
    """Take one vector per image from a model's output."""
    if isinstance(output, torch.Tensor):
        return output
    pooled = getattr(output, "pooler_output", None)
    return output.last_hidden_state[:, 0] if pooled is None else pooled.flatten(1)
