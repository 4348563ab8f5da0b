"""Files of weights and of a training's state: written alike, read back, and refused when damaged."""

import json
from pathlib import Path
from pickle import UnpicklingError

import pytest
import torch
from safetensors.torch import save_file

from aoq.models import build_model
from aoq.pipeline.training.checkpoint import load_model, pack_state, read_weights, save_model, unpack_state
from tests.training.conftest import SMALL


def test_weights_files(tmp_path):
    model, path, options = build_model("vsepp", **SMALL), tmp_path / "model.safetensors", SMALL
    save_model(path, model.state_dict(), {"name": "vsepp", "options": options})
    first = path.read_bytes()
    save_model(path, model.state_dict(), {"options": dict(reversed(options.items())), "name": "vsepp"})
    assert path.read_bytes() == first
    description, weights = read_weights(path)
    assert description["name"] == "vsepp"
    assert weights.keys() == model.state_dict().keys()
    path.write_bytes(first[: len(first) // 2])
    with pytest.raises(ValueError, match="damaged or not a safetensors file"):
        load_model(path)
    save_model(path, model.state_dict(), {"name": "vsepp", "options": {**options, "embedding_size": 9}})
    with pytest.raises(ValueError, match="not weights that fit the 'vsepp' they describe"):
        load_model(path)
    with pytest.raises(FileNotFoundError, match="does not exist"):
        load_model(tmp_path / "none.safetensors")


@pytest.mark.parametrize(
    ("description", "message"),
    [
        ("null", "the whole: input should be a valid dictionary"),
        ('{"name": "vsepp"}', "options: field required"),
        ('{"name": 7, "options": {}}', "name: input should be a valid string"),
        ('{"name": "vsepp", "options": {"feature_size": 6}}', "options.vocabulary_size: field required"),
        ('{"name": "none", "options": {"feature_size": 6, "vocabulary_size": 24}}', "there is no model 'none'"),
        ({"feature_size": 0}, "options.feature_size: .*than 0"),
        ({"depth": 2}, r"unknown keys \['depth'\]; allowed keys are"),
        ({"word_size": "5"}, "word_size: Input should be a valid integer"),
        ({"feature_size": 6 * 10**9, "vocabulary_size": 9 * 10**11}, "not weights that fit the 'vsepp' they describe"),
        ({"vocabulary_size": int("9" * 100)}, "not weights that fit the 'vsepp' they describe"),
    ],
)
def test_hostile_descriptions_are_refused_before_anything_is_built(tmp_path, description, message):
    path, model = tmp_path / "model.safetensors", build_model("vsepp", **SMALL)
    if isinstance(description, dict):
        options = {"feature_size": 6, "vocabulary_size": 24, **description}
        description = json.dumps({"name": "vsepp", "options": options})
    save_file(model.state_dict(), path, {"aoq": description})
    with pytest.raises(ValueError, match=f"model.safetensors.*{message}"):
        load_model(path)


def test_states_are_tensors_and_primitives():
    assert unpack_state(pack_state({"a": torch.arange(3), "b": [1, "x", 2.5]}))["b"] == [1, "x", 2.5]
    with pytest.raises(UnpicklingError, match="Weights only load failed"):
        unpack_state(pack_state({"path": Path("x")}))
