"""Tiny encoders of each kind, built from configurations with random weights and saved as their library saves them."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from aoq.models.base import Captions
from tests.prepare.conftest import SEEN, TINY

CLOSE = {"atol": 1e-5, "rtol": 1e-5}
SIDE, WORDS, LONGEST = 32, 40, 16
VISION = {**TINY, "image_size": SIDE, "patch_size": 8}
TEXT = {**TINY, "vocab_size": WORDS, "max_position_embeddings": LONGEST}
STAGES = {"image_size": SIDE, "patch_size": 4, "embed_dim": 8, "depths": [1, 1], "num_heads": [1, 1], "window_size": 4}


def _config(library, kind: str):
    if kind == "dinov2":
        options = VISION | {"num_register_tokens": 2, "mlp_ratio": 1, "use_swiglu_ffn": False}
        return library.Dinov2WithRegistersConfig(**options)
    if kind == "clip":
        text = TEXT | {"bos_token_id": 1, "eos_token_id": 2}
        return library.CLIPConfig(text_config=text, vision_config=VISION, projection_dim=6)
    if kind == "siglip":
        return library.SiglipConfig(text_config=TEXT | {"projection_size": 16}, vision_config=VISION)
    if kind == "resnet":
        return library.ResNetConfig(embedding_size=4, hidden_sizes=[4, 8], depths=[2, 1])
    if kind == "gpt2":
        return library.GPT2Config(n_embd=8, n_layer=1, n_head=2, vocab_size=WORDS, n_positions=LONGEST)
    if kind == "mae":
        return library.ViTMAEConfig(**VISION)
    options = {"vit": VISION, "swin": STAGES, "bert": TEXT}[kind]
    return getattr(library, {"vit": "ViT"}.get(kind, kind.title()) + "Config")(**options)


@pytest.fixture(scope="session")
def saved(tmp_path_factory):
    """`saved(kind)`: the library's own model in eval mode, and the name of its folder."""
    library = pytest.importorskip("transformers")
    made: dict[str, tuple[nn.Module, str]] = {}

    def save(kind: str) -> tuple[nn.Module, str]:
        if kind not in made:
            torch.manual_seed(0)
            folder: Path = tmp_path_factory.mktemp(kind)
            model = library.AutoModel.from_config(_config(library, kind)).eval()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.uniform_(-0.3, 0.3)
            model.save_pretrained(folder)
            seen = json.dumps({"size": {"height": SIDE, "width": SIDE}} | SEEN)
            (folder / "preprocessor_config.json").write_text(seen)
            made[kind] = model, f"transformers:{folder}"
        return made[kind]

    return save


def normalised(pixels):
    """Normalise by (x / 255 - mean) / std, channels first: the definition."""
    mean, std = torch.tensor(SEEN["image_mean"]), torch.tensor(SEEN["image_std"])
    return ((pixels / 255 - mean) / std).permute(0, 3, 1, 2)


def pretrained(tower):
    """The tower with its weights, in eval mode."""
    tower.load_pretrained()
    return tower.eval()


def gathered(made):
    """Captions of these tokens, with noise where they are padded."""
    words, lengths = (torch.from_numpy(part) for part in made.gather(np.arange(len(made))))
    noise = torch.arange(words.shape[1]) >= lengths.unsqueeze(1)
    return Captions(torch.nn.functional.pad(words.masked_fill(noise, 5), (0, 2), value=7), lengths)


@pytest.fixture
def pixels():
    """Five photographs as 8-bit pixels."""
    return torch.randint(0, 256, (5, SIDE, SIDE, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
