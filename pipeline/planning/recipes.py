"""The artefact of each stage, by what shapes it and what it is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aoq.pipeline.artifact import Artifact, file_sha256
from aoq.pipeline.config.dataset import Noise
from aoq.pipeline.config.experiment import Experiment
from aoq.pipeline.config.screen import Screen
from aoq.pipeline.data.annotations import annotation_files
from aoq.pipeline.data.folder import split_fingerprint
from aoq.pipeline.data.phrases import annotation_path
from aoq.pipeline.planning.fields import schedule, values

VERSIONS = {
    "world": 1,
    "dataset": 1,
    "first_round": 1,
    "embeddings": 1,
    "hard_negatives": 2,
    "screen": 1,
    "second_round": 1,
    "evaluation": 1,
    "rerank": 1,
    "fusion": 1,
    "refresh": 1,
    "co_teaching": 1,
}
"""Of each stage's code, and of each way to make a table or a student: raised when it changes results."""


@dataclass(frozen=True)
class Recipes:
    """Artefacts below `root`, of what lies below `data_root`."""

    data_root: Path
    root: Path

    def derived(self, kind: str, ingredients: Mapping[str, Any], *upstream: Artifact) -> Artifact:
        return Artifact(self.root, "hard_negatives", VERSIONS[kind], {kind: ingredients}, upstream)

    def artifact(self, stage: str, ingredients: Mapping[str, Any], *upstream: Artifact) -> Artifact:
        return Artifact(self.root, stage, VERSIONS[stage], ingredients, upstream)

    def dataset(self, experiment: Experiment, folder: Path, world: tuple[Artifact, ...]) -> Artifact:
        data = experiment.dataset
        vocabulary: dict[str, Any] = {"splits": list(data.vocabulary_splits), "min_count": data.min_count}
        if data.vocabulary is not None:
            vocabulary = {"sha256": self._sha256("[dataset] vocabulary", data.vocabulary)}
        splits = {"train": data.train, "dev": data.dev}
        if not world:
            splits = {role: split_fingerprint(folder, name) for role, name in splits.items()}
        cut = {} if data.train_images is None else {"train_images": data.train_images}
        return self.artifact(
            "dataset", {"splits": splits, "vocabulary": vocabulary, **cut, **self._noise(data.noise)}, *world
        )

    def _noise(self, noise: Noise | None) -> dict[str, Any]:
        """Its part of the key: none where no pair is moved."""
        if noise is None or not noise.moves_pairs:
            return {}
        if noise.file is not None:
            return {"noise": {"sha256": self._sha256("[dataset.noise] file", noise.file)}}
        return {"noise": {"level": noise.level, "ratio": noise.ratio, "seed": noise.seed, "version": 2}}

    def first(self, experiment: Experiment, shared: Mapping[str, Any]) -> dict[str, Any]:
        if experiment.first_round is not None:
            return {**shared, "training": schedule(experiment.first_round)}
        return self.imported(experiment, "teacher_weights", str(experiment.teacher_weights))

    def imported(self, experiment: Experiment, option: str, file: str) -> dict[str, Any]:
        model, regions = values(experiment.model), experiment.dataset.max_regions
        return {"model": model, "max_regions": regions, "weights_sha256": self._sha256(option, file)}

    def screen(self, screen: Screen, table: Artifact) -> Artifact:
        ingredients = screen.model_dump(mode="json", include={*screen.rules})
        if screen.positives is not None:
            ingredients["positives"] = self._sha256("[screen] positives", screen.positives)
        if screen.pair_probabilities is not None:
            ingredients["pair_probabilities"] = self._sha256("[screen] pair_probabilities", screen.pair_probabilities)
        return self.artifact("screen", ingredients, table)

    def _sha256(self, option: str, name: str) -> str:
        path = self.data_root / name
        if not path.is_file():
            raise FileNotFoundError(f"{option}: {path} does not exist; the path starts at the data root.")
        return file_sha256(path)

    def evaluated(self, experiment: Experiment, folder: Path, *scored: Artifact, **mean: Any) -> Artifact:
        options = values(experiment.evaluation)
        known = (experiment.dataset.train, experiment.dataset.dev)
        content = None if options["split"] in known else split_fingerprint(folder, options["split"])
        shaped = {**options, "content": content, **mean}
        if experiment.dataset.demo is not None:  # known by its key, and need not be there yet
            return self.artifact("evaluation", {**shaped, "truth": 1}, *scored)
        phrases = annotation_path(folder, options["split"])
        if phrases is not None and len(scored) == 1 and experiment.model.attends:
            shaped["phrases"] = file_sha256(phrases)
        if files := annotation_files(folder, options["split"]):
            shaped["annotations"] = {name: file_sha256(path) for name, path in files.items()}
        return self.artifact("evaluation", shaped, *scored)
