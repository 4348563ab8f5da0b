"""Published weights as safetensors, resumable state as tensors and primitives: loading executes nothing."""

from __future__ import annotations

import io
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import safetensors
import torch
from pydantic import PositiveInt
from safetensors.torch import load_file, save
from torch import Tensor
from typing_extensions import NotRequired, TypedDict

from aoq.models import build_model
from aoq.models.base import MatchingModel
from aoq.pipeline.config.models import ModelSection
from aoq.pipeline.config.section import validated
from aoq.pipeline.digests import canonical_json
from aoq.pipeline.official import FROM_DATA
from aoq.pipeline.reading import parse_json, reading
from aoq.pipeline.scratch import write_atomically

CHECKSUM_BYTES = sha256().digest_size


class Sizes(TypedDict):
    """Options of a model that follow from its data; all others are keys of [model]."""

    feature_size: PositiveInt
    vocabulary_size: PositiveInt
    regions: NotRequired[PositiveInt]


class Description(TypedDict):
    """Description of the model of some weights: its name and its constructor's keywords."""

    name: str
    options: Sizes


def save_model(path: Path, weights: Mapping[str, Tensor], description: Mapping[str, Any]) -> None:
    """Write weights with their model's description: name, options, feature_size, vocabulary_size.

    Exactly one metadata entry: with more, the file's bytes would differ from process to process.
    """
    contiguous = {name: value.detach().cpu().contiguous().clone() for name, value in weights.items()}
    write_atomically(path, save(contiguous, {"aoq": canonical_json(description)}))


def load_model(path: Path | str) -> MatchingModel:
    """Load the model that a weights file describes, in eval mode."""
    path = Path(path)
    description, weights = read_weights(path)
    name, options = description["name"], description["options"]
    with reading(path, f"weights that fit the {name!r} they describe"):
        with torch.device("meta"):  # shapes are enough, and cost nothing, whatever sizes the file claims
            expected = build_model(name, **options).state_dict()
        names = sorted(expected.keys() ^ weights.keys())
        if names:
            raise ValueError(f"{names[0]} is missing there, or has no place")
        wrong = [key for key, value in weights.items() if value.shape != expected[key].shape]
        if wrong:
            shapes = (tuple(of[wrong[0]].shape) for of in (weights, expected))
            raise ValueError("{} is {}, not {}".format(wrong[0], *shapes))
    model = build_model(name, **options)
    model.load_state_dict(weights)
    return model.eval()


def read_weights(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read the description of a model and its weights; its options are ones that [model] takes."""
    with reading(path, "a safetensors file", "remake or re-import it"):
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
        weights = load_file(path)
    if "aoq" not in metadata:
        raise ValueError(f"{path} does not say which model it holds; `aoq import-checkpoint` writes files that do.")
    with reading(path, "a file that describes its model", "remake or re-import it"):
        description: dict[str, Any] = dict(parse_json(metadata["aoq"], Description))
        section = ModelSection.kind(description["name"])
    chosen = {option: value for option, value in description["options"].items() if option not in FROM_DATA}
    validated(section, str(path), {**chosen, "name": description["name"]})
    return description, weights


def pack(state: Mapping[str, Any]) -> bytes:
    """Pack tensors, numbers, strings, lists and dicts, and nothing else."""
    buffer = io.BytesIO()
    torch.save(dict(state), buffer)
    return buffer.getvalue()


def unpack(content: bytes) -> dict[str, Any]:
    """Unpack what was packed, bit for bit."""
    return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)


def save_state(path: Path, state: Mapping[str, Any]) -> None:
    """Write the packed state; the file's last bytes are the sha256 of all before."""
    content = pack(state)
    write_atomically(path, content + sha256(content).digest())


def load_state(path: Path) -> dict[str, Any]:
    """Read what `save_state` wrote, bit for bit.

    Raises:
        ValueError: for any other content.
    """
    with reading(path, "a checkpoint"):
        stored = path.read_bytes()
        content, checksum = stored[:-CHECKSUM_BYTES], stored[-CHECKSUM_BYTES:]
        if sha256(content).digest() != checksum:
            raise ValueError("its checksum is another")
        return unpack(content)
