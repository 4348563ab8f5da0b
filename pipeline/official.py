"""Read a checkpoint of the official implementations without running anything it says."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from aoq.models.official import OfficialModel, from_official
from aoq.pipeline.config.models import Model, ModelSection

NETWORKS = (("model",), ("model_A", "model_B"))
"""What holds the state dicts; NCR trains two networks."""
FROM_DATA = ("feature_size", "vocabulary_size", "regions")
"""Options that an experiment takes from its data."""
MOST_KEYS = 8


def read_official_checkpoint(path: Path, name: str | None = None) -> tuple[OfficialModel, ...]:
    """The model in a `model_best.pth.tar` of any torch and Python version; the two of NCR.

    Only tensors, plain values and `argparse.Namespace` (the training options) are unpickled. `name` says which model
    it is where several have such weights. Each model has every option that a [model] section knows.
    """
    loaded = _load(path)
    try:
        content = {_text(key): value for key, value in loaded.items()} if isinstance(loaded, Mapping) else {}
        networks = _networks(content, type(loaded).__name__)
        return tuple(_complete(from_official(parts, _options(content), name)) for parts in networks)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def model_section(model: OfficialModel) -> ModelSection:
    """The [model] section of an experiment with this model."""
    options = {key: value for key, value in model.options.items() if key not in FROM_DATA}
    try:
        section: ModelSection = TypeAdapter(Model).validate_python({"name": model.name, **options})
    except ValidationError as error:
        wrong = [f"{problem['loc'][-1]}: {problem['msg']} (got {problem['input']!r})" for problem in error.errors()]
        raise ValueError(f"It was trained with options that ours does not take: {'; '.join(wrong)}.") from None
    return section


def _complete(model: OfficialModel) -> OfficialModel:
    if "thres_safe" in model.assumed:
        raise ValueError(
            "The options lack thres_safe, the threshold that NAAF has learnt, and without it all scores would be "
            "wrong; take a checkpoint that has the official `opt`."
        )
    return replace(model, options={**model.options, **model_section(model).model_dump(exclude={"name"})})


def _networks(content: Mapping[str, Any], kind: str) -> list[list[dict[str, Tensor]]]:
    """The state dicts of each network."""
    for names in NETWORKS:
        if all(_is_state_dicts(content.get(name)) for name in names):
            return [[_state(part) for part in content[name]] for name in names]
    keys = sorted(content)
    holds = f"{keys[:MOST_KEYS]}{' and more' if len(keys) > MOST_KEYS else ''}" if keys else kind
    raise ValueError(
        "This is no official checkpoint: it needs a list of state dicts under 'model' (NCR: under 'model_A' and under "
        f"'model_B'), but holds {holds}."
    )


def _is_state_dicts(value: object) -> bool:
    return isinstance(value, list | tuple) and all(
        isinstance(part, Mapping) and all(isinstance(weight, Tensor) for weight in part.values()) for part in value
    )


def _state(part: Mapping[Any, Any]) -> dict[str, Tensor]:
    """Own tensors under text names: the official GRU parameters are views of one storage."""
    return {_text(key): value.detach().clone() for key, value in part.items()}


def _options(content: Mapping[str, Any]) -> dict[str, object]:
    """The official command-line options; none where there are none."""
    options: Any = content.get("opt", {})
    options = vars(options) if isinstance(options, argparse.Namespace) else options
    if not isinstance(options, Mapping):
        raise ValueError(f"Its options ('opt') are of type {type(options).__name__}; a Namespace or dict was expected.")
    return {_text(key): _text(value) if isinstance(value, bytes) else value for key, value in options.items()}


def _text(value: object) -> str:
    """What Python 2 wrote may be bytes."""
    return value.decode("latin1") if isinstance(value, bytes) else str(value)


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
                f"{path} was refused: besides tensors and training options it holds objects whose loading may run any "
                "code. Get it from its authors; or, where you trust it, save it anew with plain values only, "
                'torch.save({"model": checkpoint["model"], "opt": vars(checkpoint["opt"])}, ...). '
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
