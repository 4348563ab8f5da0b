"""Files of weights and of a training's state: written alike, read back, and refused when damaged."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from aoq.models import build_model
from aoq.pipeline.training.checkpoint import load_model, load_state, read_weights, save_model, save_state

SMALL = {"embedding_size": 8, "word_size": 5}


def test_weights_files(tmp_path):
    model = build_model("vsepp", feature_size=6, vocabulary_size=24, **SMALL)
    path = tmp_path / "model.safetensors"
    options = {**SMALL, "feature_size": 6, "vocabulary_size": 24}
    save_model(path, model.state_dict(), {"name": "vsepp", "options": options})
    first = path.read_bytes()
    save_model(path, model.state_dict(), {"options": dict(reversed(options.items())), "name": "vsepp"})
    assert path.read_bytes() == first
    description, weights = read_weights(path)
    assert description["name"] == "vsepp"
    assert weights.keys() == model.state_dict().keys()
    path.write_bytes(first[: len(first) // 2])
    with pytest.raises(ValueError, match="damaged or no safetensors file"):
        load_model(path)
    save_model(path, model.state_dict(), {"name": "vsepp", "options": {**options, "embedding_size": 9}})
    with pytest.raises(ValueError, match="do not fit the 'vsepp' they describe"):
        load_model(path)
    with pytest.raises(FileNotFoundError, match="does not exist"):
        load_model(tmp_path / "none.safetensors")


def test_states_are_tensors_and_primitives(tmp_path):
    save_state(tmp_path / "state", {"a": torch.arange(3), "b": [1, "x", 2.5]})
    assert load_state(tmp_path / "state")["b"] == [1, "x", 2.5]
    save_state(tmp_path / "state", {"path": Path("x")})
    with pytest.raises(ValueError, match="damaged"):
        load_state(tmp_path / "state")
