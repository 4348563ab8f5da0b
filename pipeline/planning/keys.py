"""Artefact of each stage, and its key from what shapes it; options without effect stay out of keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from aoq.pipeline.artifact import Artifact
from aoq.pipeline.config.dataset import DemoWorld, Noise, Source
from aoq.pipeline.config.experiment import Experiment
from aoq.pipeline.config.losses import OnlineLoss, control_version
from aoq.pipeline.config.sampling import BATCHES
from aoq.pipeline.config.screen import FILES, Screen
from aoq.pipeline.config.tables import Mining
from aoq.pipeline.config.training import CoTeaching, Schedule, SecondRound, Training
from aoq.pipeline.data.annotations import annotation_files
from aoq.pipeline.data.folder import split_fingerprint
from aoq.pipeline.data.phrases import annotation_path
from aoq.pipeline.digests import file_sha256, known_sha256

VERSIONS = {"hard_negatives": 2}
"""Version of a stage's code, or of another way to make a table or a student (`rerank`, `fusion`, `refresh`,
`co_teaching`); raised from 1 when it changes results."""
LATER_WORLD = {"detail", "feature_noise", "pictures"}
LATER_SAMPLING = {"gap", "sharpness", "windows", "hardness", "hardest", "guide_margin", "batches", *BATCHES}
LATER_CO_TEACHING = {"start_up", "precision"} | {
    name for name, field in Schedule.model_fields.items() if field.default is None
}
"""Options added later; they stay out of keys while unused."""


@dataclass(frozen=True)
class Recipes:
    """Artefacts below `root`, made from data below `data_root`."""

    data_root: Path
    root: Path

    def artifact(self, stage: str, ingredients: Mapping[str, Any], *upstream: Artifact, way: str = "") -> Artifact:
        return Artifact(self.root, stage, VERSIONS.get(way or stage, 1), ingredients, upstream)

    def data(self, experiment: Experiment) -> tuple[Path, dict[str, Artifact]]:
        """The folder that is read, and the stages that make the data: a generated world, and the dataset."""
        data, stages = experiment.dataset, {}
        folder, splits = self.data_root / str(data.folder), {"train": data.train, "dev": data.dev}
        if data.demo is not None:
            stages["world"] = self.artifact("world", _world(data.demo))
            folder = stages["world"].path
        elif data.source is not None:
            stages["prepared"] = self.artifact("prepared", self._prepared(data.source))
            folder = stages["prepared"].path
        else:
            splits = {role: split_fingerprint(folder, name) for role, name in splits.items()}
        vocabulary: dict[str, Any] = {"splits": list(data.splits_of_words), "min_count": data.min_count}
        further = [name for name in data.splits_of_words if name not in (data.train, data.dev)]
        if data.folder is not None and further:  # the others are in `splits`
            vocabulary["content"] = {name: split_fingerprint(folder, name) for name in further}
        if data.vocabulary is not None:
            vocabulary = {"sha256": self._sha256("[dataset] vocabulary", data.vocabulary)}
        if data.tokeniser is not None:
            vocabulary = pretrained(data.tokeniser)
        cut = {} if data.train_images is None else {"train_images": data.train_images}
        ingredients = {"splits": splits, "vocabulary": vocabulary, **cut, **self._noise(data.noise)}
        if data.folder is not None and reads_photographs(experiment):
            ingredients["photographs"] = {name: _photographs(folder, name) for name in (data.train, data.dev)}
        stages["dataset"] = self.artifact("dataset", ingredients, *stages.values())
        return folder, stages

    def _prepared(self, source: Source) -> dict[str, Any]:
        """Content of a source, wherever it lies, and the recipe of what is made from it."""
        from aoq.pipeline.prepare.request import Request, source_fingerprint  # late: most experiments have none

        later = set() if source.pack else {"pack"}
        made = source.model_dump(mode="json", exclude={"path", "images", "skip_broken"} | later)
        return {**made, "content": source_fingerprint(Request.of_section(source, self.data_root))}

    def _noise(self, noise: Noise | None) -> dict[str, Any]:
        """The noise's part of the key; empty if no pair is moved."""
        if noise is None or not noise.moves_pairs:
            return {}
        if noise.file is not None:
            return {"noise": {"sha256": self._sha256("[dataset.noise] file", noise.file)}}
        return {"noise": {"level": noise.level, "ratio": noise.ratio, "seed": noise.seed, "version": 2}}

    def mined(self, experiment: Experiment, mining: Mining, dataset: Artifact) -> dict[str, Artifact]:
        """A first round, trained or imported, its embeddings, and their table, whichever exact search finds it.

        An encoder takes the first round's place.
        """
        if experiment.teacher_encoder is not None:
            embeddings = self.artifact("embeddings", pretrained(experiment.teacher_encoder), dataset)
            return {"embeddings": embeddings, "hard_negatives": self._mined(mining, embeddings)}
        if experiment.first_round is not None:
            first_round = self.trained(experiment, experiment.first_round, dataset)
        else:
            first_round = self.imported(experiment, "teacher_weights", str(experiment.teacher_weights), dataset)
        embeddings = self.artifact("embeddings", {}, first_round)
        return {
            "first_round": first_round,
            "embeddings": embeddings,
            "hard_negatives": self._mined(mining, embeddings),
        }

    def _mined(self, mining: Mining, embeddings: Artifact) -> Artifact:
        exact = {} if mining.is_approximate else {"search": "exact", "recall_floor": 1.0}
        return self.artifact("hard_negatives", {**values(mining), **exact}, embeddings)

    def imported(self, experiment: Experiment, option: str, file: str, dataset: Artifact) -> Artifact:
        """Imported weights in place of a training."""
        ingredients = {**_model(experiment), "weights_sha256": self._sha256(option, file)}
        return self.artifact("first_round", ingredients, dataset)

    def trained(self, experiment: Experiment, training: Training, dataset: Artifact) -> Artifact:
        """A training on in-batch negatives alone: of a teacher, a control, or a student without a table."""
        return self.artifact("first_round", {**_trained(experiment), "training": schedule(training)}, dataset)

    def co_taught(self, experiment: Experiment, section: CoTeaching, dataset: Artifact) -> Artifact:
        defaults = CoTeaching.model_fields
        later = {name for name in LATER_CO_TEACHING if getattr(section, name) == defaults[name].default}
        ingredients = {**_trained(experiment), "co_teaching": section.model_dump(mode="json", exclude=later)}
        return self.artifact("second_round", ingredients, dataset, way="co_teaching")

    def student(self, experiment: Experiment, *upstream: Artifact) -> Artifact:
        """A second round on the dataset and the table, or a screen of it, from the start if there is one."""
        sampling, screen = values(experiment.sampling), experiment.screen
        ingredients = {
            **_trained(experiment),
            "training": schedule(student_training(experiment.student)),
            "sampling": {k: value for k, value in sampling.items() if value is not None or k not in LATER_SAMPLING},
        }
        if screen is not None:
            ingredients["suspected"] = screen.suspected
        return self.artifact("second_round", ingredients, *upstream)

    def screen(self, screen: Screen, table: Artifact) -> Artifact:
        ingredients = screen.recipe
        for option in FILES:
            if (file := getattr(screen, option)) is not None:
                ingredients[option] = self._sha256(f"[screen] {option}", file)
        return self.artifact("screen", ingredients, table)

    def table(self, way: str, ingredients: Mapping[str, Any], *upstream: Artifact) -> Artifact:
        """A table made from others, or by a student."""
        return self.artifact("hard_negatives", {way: ingredients}, *upstream, way=way)

    def evaluation(self, experiment: Experiment, folder: Path, *scored: Artifact, **mean: Any) -> Artifact:
        """Metrics on the split and its annotations; `mean` belongs to an ensemble."""
        options = values(experiment.evaluation)
        data = experiment.dataset
        is_known = data.folder is None or options["split"] in (data.train, data.dev)
        content = None if is_known else split_fingerprint(folder, options["split"])
        shaped = {**options, "content": content, **mean}
        if content is not None and reads_photographs(experiment):
            shaped["photographs"] = _photographs(folder, options["split"])
        if data.folder is None:  # known by its key; it need not exist yet
            truth = {"truth": 1} if data.demo is not None else {}
            return self.artifact("evaluation", shaped | truth, *scored)
        phrases = annotation_path(folder, options["split"])
        if phrases is not None and len(scored) == 1 and experiment.model.attends:
            shaped["phrases"] = file_sha256(phrases)
        if files := annotation_files(folder, options["split"]):
            shaped["annotations"] = {name: file_sha256(path) for name, path in files.items()}
        return self.artifact("evaluation", shaped, *scored)

    def _sha256(self, option: str, name: str) -> str:
        path = self.data_root / name
        if not path.is_file():
            raise FileNotFoundError(f"{option}: {path} does not exist; the path starts at the data root.")
        return file_sha256(path)


def pretrained(name: str) -> dict[str, Any]:
    """Identify an encoder or a tokeniser: by name if it is on a hub, by its files if it lies in a folder."""
    library, _, model = name.partition(":")
    if not (folder := Path(model.removeprefix("local-dir:"))).is_dir():  # open_clip's word for it
        return {"encoder": name}
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {"encoder": library, "files": {str(path.relative_to(folder)): known_sha256(path) for path in files}}


def reads_photographs(experiment: Experiment) -> bool:
    """Return whether the model's images are photographs instead of region features."""
    return getattr(experiment.model, "image_tower", None) is not None


def _photographs(folder: Path, split: str) -> str:
    from aoq.pipeline.prepare.photographs import photographs_fingerprint  # imported here: most experiments need none

    return photographs_fingerprint(folder, split)


def control_training(training: Training) -> Training:
    """The same schedule and constraints without offline negatives: on the online loss, or on the loss itself.

    Warm-up epochs that are online anyway are not distinguished, so that equal trainings have equal keys.
    """
    warmup, loss = list(training.warmup), control_version(training.loss)
    while warmup and warmup[-1] == "online" and isinstance(loss, OnlineLoss):
        warmup.pop()
    shared = {name: getattr(training, name) for name in Training.model_fields}
    return Training.model_validate({**shared, "loss": loss, "warmup": tuple(warmup)})


def student_training(student: SecondRound) -> SecondRound:
    """The second round's own schedule: fine-tuning has no warm-up and no start-up, as those are for fresh weights."""
    return student if student.start is None else student.model_copy(update={"warmup": (), "start_up": None})


def schedule(training: Training) -> dict[str, Any]:
    """Options of the round; those added later are None while unused, and stay out of keys.

    So does `precision` while it is float32.
    """
    unheeded = set() if training.is_paced else {"start_up"}
    if training.precision == Training.model_fields["precision"].default:
        unheeded.add("precision")
    return training.model_dump(mode="json", exclude_none=True, exclude=unheeded)


def _world(demo: DemoWorld) -> dict[str, Any]:
    """Parameters of a generated world; options added later stay out of keys while they have their default."""
    later = {name for name in LATER_WORLD if getattr(demo, name) == DemoWorld.model_fields[name].default}
    return demo.model_dump(mode="json", exclude=later)


def values(section: BaseModel) -> dict[str, Any]:
    return section.model_dump(mode="json")


def _model(experiment: Experiment) -> dict[str, Any]:
    later = {"image_tower", "text_tower"} if experiment.model.attends else {"image_tower"}
    model = {name: value for name, value in values(experiment.model).items() if value is not None or name not in later}
    for option in ("image_tower", "text_tower"):
        if (tower := model.get(option)) is not None:
            model[option] = pretrained(tower)
    return {"model": model, "max_regions": experiment.dataset.max_regions}


def _trained(experiment: Experiment) -> dict[str, Any]:
    """Everything that shapes every training of the experiment's model."""
    return {**_model(experiment), "seed": experiment.seed}
