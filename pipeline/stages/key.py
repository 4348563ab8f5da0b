"""What keys are made of: ingredients of artefacts, hashed files, and encoders by name or by content."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aoq.pipeline.artifact import Artifact
from aoq.pipeline.config.experiment import Experiment
from aoq.pipeline.digests import file_sha256, known_sha256


@dataclass(frozen=True)
class Roots:
    """Folders of all data and of all artefacts."""

    data: Path
    artifacts: Path

    def artifact(
        self,
        stage: str,
        ingredients: Mapping[str, Any],
        *upstream: Artifact,
        reads: Sequence[Artifact] = (),
        version: int = 1,
    ) -> Artifact:
        """Plan an artefact; raise its `version` when its code changes results."""
        return Artifact(self.artifacts, stage, version, ingredients, upstream, tuple(reads))

    def sha256(self, option: str, name: str) -> str:
        """Hash a user's file that an option names."""
        path = self.data / name
        if not path.is_file():
            raise FileNotFoundError(f"{option}: {path} does not exist; the path starts at the data root.")
        return file_sha256(path)


def pretrained(name: str) -> dict[str, Any]:
    """Identify an encoder or a tokeniser: by name if it is on a hub, by its files if it lies in a folder."""
    library, _, model = name.partition(":")
    if not (folder := Path(model.removeprefix("local-dir:"))).is_dir():  # open_clip's prefix
        return {"encoder": name}
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {"encoder": library, "files": {str(path.relative_to(folder)): known_sha256(path) for path in files}}


def reads_photographs(experiment: Experiment) -> bool:
    """Return whether the model's images are photographs instead of region features."""
    return getattr(experiment.model, "image_tower", None) is not None
