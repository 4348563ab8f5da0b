"""Tiny encoders of each kind, built from configurations with random weights and saved as their library saves them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

SIZES = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2}
SIDE, WORDS, LONGEST = 32, 40, 16
VISION = {**SIZES, "image_size": SIDE, "patch_size": 8}
TEXT = {**SIZES, "vocab_size": WORDS, "max_position_embeddings": LONGEST}
STAGES = {"image_size": SIDE, "patch_size": 4, "embed_dim": 8, "depths": [1, 1], "num_heads": [1, 1], "window_size": 4}


def _build(library, kind: str):
    configs = {
        "vit": lambda: library.ViTModel(library.ViTConfig(**VISION), add_pooling_layer=False),
        "dinov2": lambda: library.Dinov2WithRegistersModel(
            library.Dinov2WithRegistersConfig(
                **{**VISION, "num_register_tokens": 2, "mlp_ratio": 1}, use_swiglu_ffn=False
            )
        ),
        "swin": lambda: library.SwinModel(library.SwinConfig(**STAGES), add_pooling_layer=False),
        "bert": lambda: library.BertModel(library.BertConfig(**TEXT), add_pooling_layer=False),
        "clip": lambda: library.CLIPModel(
            library.CLIPConfig(
                text_config={**TEXT, "bos_token_id": 1, "eos_token_id": 2}, vision_config=VISION, projection_dim=6
            )
        ),
        "siglip": lambda: library.SiglipModel(
            library.SiglipConfig(text_config={**TEXT, "projection_size": 16}, vision_config=VISION)
        ),
    }
    return configs[kind]()


@pytest.fixture(scope="session")
def saved(tmp_path_factory):
    """`saved(kind)`: the library's own model in eval mode, and the name of its folder."""
    library = pytest.importorskip("transformers")
    made: dict[str, tuple[nn.Module, str]] = {}

    def save(kind: str) -> tuple[nn.Module, str]:
        if kind not in made:
            torch.manual_seed(0)
            folder: Path = tmp_path_factory.mktemp(kind)
            model = _build(library, kind).eval()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.uniform_(-0.3, 0.3)
            model.save_pretrained(folder)
            seen = {
                "size": {"height": SIDE, "width": SIDE},
                "image_mean": [0.5, 0.4, 0.3],
                "image_std": [0.2, 0.3, 0.4],
            }
            (folder / "preprocessor_config.json").write_text(json.dumps(seen))
            made[kind] = model, f"transformers:{folder}"
        return made[kind]

    return save


def normalised(pixels):
    """Normalise by (x / 255 - mean) / std, channels first: the definition."""
    mean, std = torch.tensor([0.5, 0.4, 0.3]), torch.tensor([0.2, 0.3, 0.4])
    return ((pixels / 255 - mean) / std).permute(0, 3, 1, 2)


@pytest.fixture
def pixels():
    """Five photographs as 8-bit pixels."""
    return torch.randint(0, 256, (5, SIDE, SIDE, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
