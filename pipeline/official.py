"""Read a checkpoint of the official implementations without executing its content."""

from __future__ import annotations

import argparse
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from aoq.models.official import OfficialModel, from_official
from aoq.pipeline.config.models import Model, ModelSection
from aoq.pipeline.reading import reading, require_shallow

_PICKLES = 5
"""Pickles at the start of a checkpoint in torch's format before 1.6."""
FROM_DATA = ("feature_size", "vocabulary_size", "regions")
"""Options that an experiment takes from its data."""
SAVE_PLAIN = 'torch.save({"model": checkpoint["model"], "opt": vars(checkpoint["opt"])}, ...)'


def read_official_checkpoint(path: Path, name: str | None = None) -> tuple[OfficialModel, ...]:
    """Read the model of a `model_best.pth.tar` of any torch and Python version; for NCR, both models.

    Only tensors, plain values and `argparse.Namespace` (the training options) are unpickled. `name` selects the model
    if the weights fit several. Each result has every option of its [model] section.
    """
    loaded = _load(path)
    content = {_decoded_text(key): value for key, value in loaded.items()} if isinstance(loaded, Mapping) else {}
    try:
        networks, options = _networks(content, type(loaded).__name__), _official_options(content.get("opt", {}))
        _check_sizes(networks, path.stat().st_size)
        # Copies: the official GRU parameters are views of one storage.
        own = [
            [{_decoded_text(key): value.detach().clone() for key, value in part.items()} for part in parts]
            for parts in networks
        ]
        return tuple(_complete(from_official(parts, options, name)) for parts in own)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def model_section(model: OfficialModel) -> ModelSection:
    options = {key: value for key, value in model.options.items() if key not in FROM_DATA}
    try:
        return TypeAdapter(Model).validate_python({"name": model.name, **options})
    except ValidationError as error:
        wrong = [f"{problem['loc'][-1]}: {problem['msg']} (got {problem['input']!r})" for problem in error.errors()]
        raise ValueError(f"It was trained with options that our model does not have: {'; '.join(wrong)}.") from None


def _complete(model: OfficialModel) -> OfficialModel:
    if "thres_safe" in model.assumed:
        raise ValueError(
            "The options lack thres_safe, the threshold that NAAF has learnt. Without it all scores would be wrong; "
            "use a checkpoint that has the official `opt`."
        )
    return replace(model, options={**model.options, **model_section(model).model_dump(exclude={"name"})})


def _networks(content: Mapping[str, Any], kind: str) -> list[list[Mapping[Any, Tensor]]]:
    for names in (("model",), ("model_A", "model_B")):  # NCR has two networks
        networks = [content.get(name) for name in names]
        if all(isinstance(parts, list | tuple) and all(map(_is_state_dict, parts)) for parts in networks):
            return [list(parts) for parts in networks if parts is not None]
    keys = sorted(content)
    holds = f"{keys[:8]}{' and more' if len(keys) > 8 else ''}" if keys else kind
    raise ValueError(
        "This is not an official checkpoint: it needs a list of state dicts under 'model' (NCR: under 'model_A' and "
        f"under 'model_B'), but holds {holds}."
    )


def _is_state_dict(part: object) -> bool:
    return isinstance(part, Mapping) and all(isinstance(weight, Tensor) for weight in part.values())


def _official_options(options: Any) -> dict[str, object]:
    """Return the official command-line options; a value that is not plain becomes its type, which no option accepts."""
    options = vars(options) if isinstance(options, argparse.Namespace) else options
    if not isinstance(options, Mapping):
        raise ValueError(f"Its options ('opt') are of type {type(options).__name__}; a Namespace or dict was expected.")
    plain: dict[str, object] = {}
    for key, value in options.items():
        is_plain = abs(value) < 2**63 if isinstance(value, int) else value is None or isinstance(value, str | float)
        other = _decoded_text(value) if isinstance(value, bytes) else f"of type {type(value).__name__}"
        plain[_decoded_text(key)] = value if is_plain else other
    return plain


def _check_sizes(networks: Iterable[Iterable[Mapping[Any, Tensor]]], size: int) -> None:
    """Refuse tensors that are not plain numbers, or that claim more bytes than the file has by repeating a few."""
    total = 0
    for tensor in (tensor for parts in networks for part in parts for tensor in part.values()):
        is_plain = tensor.layout == torch.strided and tensor.device.type == "cpu" and not tensor.is_quantized
        if not is_plain or tensor.is_complex():
            raise ValueError("It holds weights that are not plain real numbers.")
        total += tensor.numel() * tensor.element_size()
        if total > size:
            raise ValueError(f"Its weights claim {total:,} bytes or more, but the file has {size:,}.")


def _decoded_text(value: object) -> str:
    """Decode text, which Python 2 wrote as bytes."""
    return value.decode("latin1") if isinstance(value, bytes) else str(value)


def _load(path: Path) -> Any:
    with reading(path, "a checkpoint", "give the path of a model_best.pth.tar"), path.open("rb") as file:
        head = file.read(512)
        file.seek(0)
        for _ in range(_PICKLES):
            require_shallow(file)
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                claimed, size = sum(member.file_size for member in archive.infolist()), path.stat().st_size
                if claimed > size:  # torch does not compress
                    raise ValueError(f"its parts claim {claimed:,} bytes, but the file has {size:,}")
                for member in archive.infolist():
                    if member.filename.endswith(".pkl"):
                        require_shallow(archive.read(member))
    if head.lstrip().startswith(b"<"):
        raise ValueError(f"{path} is a web page, not a checkpoint; download the file itself again.")
    try:
        with torch.serialization.safe_globals([argparse.Namespace]):
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        if unsupported := [line for line in lines if "unsupported" in line.lower()]:
            raise ValueError(
                f"{path} was refused: besides tensors and training options it holds objects that may run any code when "
                "loaded. Get it from its authors; or, if you trust it, save it again with plain values only, "
                f"{SAVE_PLAIN}. ({unsupported[0][:200]})"
            ) from error
        raise ValueError(
            f"{path} cannot be read as a torch checkpoint and may be cut short; compare its size, and download it "
            f"again. ({lines[0][:200]})"
        ) from error
