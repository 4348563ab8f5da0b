"""Published weights as safetensors, and the state that a killed training resumes from; loading executes nothing."""

from __future__ import annotations

import io
import logging
import os
import shutil
from collections.abc import Callable, Mapping
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
from aoq.pipeline.files import canonical_json, file_sha256, write_atomically
from aoq.pipeline.official import FROM_DATA
from aoq.pipeline.reading import parse_json, reading
from aoq.pipeline.training.metrics import MetricsLog

logger = logging.getLogger(__name__)

CHECKPOINTS = ("last.ckpt", "previous.ckpt")
"""Two checkpoints, the later one first: if it is damaged, the other is used."""
_BEST = "best-"


class _Sizes(TypedDict):
    """Options of a model that follow from its data; all others are keys of [model]."""

    feature_size: PositiveInt
    vocabulary_size: PositiveInt
    regions: NotRequired[PositiveInt]


class _Description(TypedDict):
    name: str
    options: _Sizes


def save_model(path: Path, weights: Mapping[str, Tensor], description: Mapping[str, Any]) -> None:
    """Write weights with their model's description, its name and options."""
    contiguous = {name: value.detach().cpu().contiguous().clone() for name, value in weights.items()}
    # One metadata entry: with more, the file's bytes would differ from process to process.
    write_atomically(path, save(contiguous, {"aoq": canonical_json(description)}))


def load_model(path: Path | str, **towers: str) -> MatchingModel:
    """Load the model that a weights file describes, in eval mode; `image_tower` and `text_tower` replace moved ones."""
    path = Path(path)
    description, weights = read_weights(path)
    name, options = description["name"], {**description["options"], **towers}
    with reading(path, f"weights that fit the {name!r} they describe"):
        with torch.device("meta"):  # shapes cost no memory, whatever sizes the file claims
            expected = build_model(name, **options).state_dict()
        if names := sorted(expected.keys() ^ weights.keys()):
            raise ValueError(f"{names[0]} is missing, or is not a weight of this model")
        for key, value in weights.items():
            if value.shape != expected[key].shape:
                raise ValueError(f"{key} is {tuple(value.shape)}, not {tuple(expected[key].shape)}")
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
        description: dict[str, Any] = dict(parse_json(metadata["aoq"], _Description))
        section = ModelSection.kind(description["name"])
    chosen = {option: value for option, value in description["options"].items() if option not in FROM_DATA}
    validated(section, str(path), {**chosen, "name": description["name"]})
    return description, weights


def pack_state(state: Mapping[str, Any]) -> bytes:
    """Pack tensors, numbers, strings, lists and dicts, followed by their sha256."""
    buffer = io.BytesIO()
    torch.save(dict(state), buffer)
    return buffer.getvalue() + sha256(buffer.getvalue()).digest()


def unpack_state(packed: bytes) -> dict[str, Any]:
    """Unpack them, bit for bit."""
    size = sha256().digest_size
    content, checksum = packed[:-size], packed[-size:]
    if sha256(content).digest() != checksum:
        raise ValueError("its checksum differs")
    return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)


class Checkpoints:
    """Two checkpoints, and a folder for each best epoch: a checkpoint's `state` has hashes of its files and the log."""

    def __init__(self, folder: Path, log: MetricsLog) -> None:
        self._folder, self._log, self._paths = folder, log, [folder / name for name in CHECKPOINTS]

    def save(self, content: Mapping[str, Any]) -> None:
        last, previous = self._paths
        self._folder.mkdir(exist_ok=True)
        if last.exists():
            os.replace(last, previous)
        write_atomically(last, pack_state(content))
        self.drop_others(content["state"]["best_epoch"])

    def load(self) -> dict[str, Any] | None:
        """Load the latest intact checkpoint whose files are intact, or None; remove damaged checkpoints."""
        paths = [path for path in self._paths if path.exists()]
        for path in paths:
            try:
                with reading(path, "a checkpoint"):
                    content = unpack_state(path.read_bytes())
                if file := self.damaged_file(content["state"]):
                    raise ValueError(f"{file} is missing or damaged, but {path} needs it.")
                return content
            except ValueError as error:
                logger.warning("%s Continuing without it.", error)
                path.unlink()
        if paths:
            logger.warning("no checkpoint in %s is intact: the training starts over", self._folder)
        return None

    def damaged_file(self, state: Mapping[str, Any]) -> Path | None:
        """Return a file that is missing or differs from what this state names."""
        folder = self._best(state["best_epoch"])
        for name, expected in state["best_files"].items():
            if not (folder / name).is_file() or file_sha256(folder / name) != expected:
                return folder / name
        is_same = self._log.sha256(state["metrics_position"]) == state["metrics_sha256"]
        return None if is_same else self._log.path

    def write_best(self, epoch: int, fill: Callable[[Path], None]) -> dict[str, str]:
        """Let `fill` write the files of the best epoch so far; return the sha256 of each."""
        folder = self._best(epoch)
        shutil.rmtree(folder, ignore_errors=True)  # of a killed run
        folder.mkdir(parents=True)
        fill(folder)
        return {path.name: file_sha256(path) for path in sorted(folder.iterdir())}

    def publish_best(self, state: Mapping[str, Any], work: Path) -> None:
        """Put the best epoch's files into the folder `work`; they stay here, for a run that is killed meanwhile."""
        if damaged := self.damaged_file(state):
            raise ValueError(f"{damaged} was damaged after it was written; run again to make it again.")
        folder = self._best(state["best_epoch"])
        for name in state["best_files"]:
            (work / name).unlink(missing_ok=True)  # of a killed run
            try:
                os.link(folder / name, work / name)
            except OSError:  # a file system without hard links
                shutil.copyfile(folder / name, work / name)

    def drop_others(self, epoch: int) -> None:
        """Remove all but the latest two folders up to this best epoch: two checkpoints name two of them at most."""
        folders = sorted(self._folder.glob(f"{_BEST}*"), reverse=True)
        named = [folder for folder in folders if folder <= self._best(epoch)][: len(CHECKPOINTS)]
        for folder in {*folders} - {*named}:
            shutil.rmtree(folder)

    def _best(self, epoch: int) -> Path:
        return self._folder / f"{_BEST}{epoch:06d}"
