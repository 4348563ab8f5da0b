"""Weights for others as safetensors, the state to resume from as tensors and primitives: nothing runs on loading."""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import load_file, save
from torch import Tensor

from aoq.models import build_model
from aoq.models.base import MatchingModel
from aoq.pipeline.artifact import canonical_json, write_atomically


def save_model(path: Path, weights: Mapping[str, Tensor], description: Mapping[str, Any]) -> None:
    """Write weights with what it takes to build their model: name, options, feature_size, vocabulary_size.

    Exactly one metadata entry: with more, the file's bytes would differ from process to process.
    """
    contiguous = {name: value.detach().cpu().contiguous().clone() for name, value in weights.items()}
    write_atomically(path, save(contiguous, {"aoq": canonical_json(description)}))


def load_model(path: Path | str) -> MatchingModel:
    """Load the model that a weights file describes, in eval mode."""
    description, weights = read_weights(Path(path))
    model = build_model(description["name"], **description["options"])
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise ValueError(f"{path}: the weights do not fit the {description['name']!r} they describe: {error}") from None
    return model.eval()


def read_weights(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
        weights = load_file(path)
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} does not exist.") from None
    except (safetensors.SafetensorError, OSError) as error:
        raise ValueError(f"{path} is damaged or no safetensors file ({error}); remake or re-import it.") from None
    if "aoq" not in metadata:
        raise ValueError(f"{path} does not say which model it holds; `aoq import-checkpoint` writes files that do.")
    return json.loads(metadata["aoq"]), weights


def save_state(path: Path, state: Mapping[str, Any]) -> None:
    """Tensors, numbers, strings, lists and dicts only."""
    buffer = io.BytesIO()
    torch.save(dict(state), buffer)
    write_atomically(path, buffer.getvalue())


def load_state(path: Path) -> dict[str, Any]:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, pickle.UnpicklingError, EOFError, OSError) as error:
        raise ValueError(f"{path} is damaged ({error}); delete it to train this round from its start.") from None
