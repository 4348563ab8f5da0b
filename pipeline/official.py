"""Read a checkpoint of the official implementations without running anything it says."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from models.official import OfficialModel, from_official


def read_official_checkpoint(path: Path) -> OfficialModel:
    """The model in a `model_best.pth.tar`, of any torch and Python version.

    Only tensors, plain values and `argparse.Namespace` (the training options) are unpickled.
    """
    content = _load(path)
    parts = content.get("model") if isinstance(content, Mapping) else None
    if not isinstance(parts, list | tuple) or not all(isinstance(part, Mapping) for part in parts):
        keys = sorted(map(str, content)) if isinstance(content, Mapping) else type(content).__name__
        raise ValueError(
            f"{path} is not an official VSE++, SCAN or VSRN checkpoint: it needs a list of state dicts under "
            f"'model', but holds {keys}."
        )
    options = content.get("opt", {})
    options = vars(options) if isinstance(options, argparse.Namespace) else options
    try:
        return from_official([_state(part) for part in parts], _decoded(options))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _load(path: Path) -> Any:
    if not path.exists():
        raise FileNotFoundError(f"There is no checkpoint {path}; give the path of a model_best.pth.tar.")
    if path.is_dir():
        raise ValueError(f"{path} is a directory; give the path of the model_best.pth.tar inside it.")
    with path.open("rb") as file:
        if file.read(512).lstrip().startswith(b"<"):
            raise ValueError(f"{path} is a web page, not a checkpoint; download the file itself again.")
    try:
        with torch.serialization.safe_globals([argparse.Namespace]):
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        if "unsupported" in str(error).lower():
            raise ValueError(
                f"{path} was refused: besides tensors and training options it holds objects whose loading may run "
                "any code. Get it from its authors, or save its state dicts alone with torch.save. "
                f"({_first_complaint(error)})"
            ) from error
        raise ValueError(
            f"{path} cannot be read as a torch checkpoint; it may be cut short, so compare its size and download "
            f"it again. ({_first_complaint(error)})"
        ) from error


def _first_complaint(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if "unsupported" in line.lower()]
    return (telling or lines or [type(error).__name__])[0][:200]


def _state(part: Mapping[Any, Any]) -> dict[str, Tensor]:
    """Own tensors under text names: the official GRU parameters are views of one storage."""
    return {str(_text(key)): value.detach().clone() for key, value in part.items()}


def _decoded(options: Mapping[Any, Any]) -> dict[str, object]:
    return {str(_text(key)): _text(value) for key, value in options.items()}


def _text(value: object) -> object:
    return value.decode("latin1") if isinstance(value, bytes) else value
