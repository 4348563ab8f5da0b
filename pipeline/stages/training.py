"""Trainings: the first round, the control, and the second round; or imported weights instead of one."""

from __future__ import annotations

from typing import Any

from aoq.pipeline.artifact import Artifact
from aoq.pipeline.build import Build
from aoq.pipeline.config.experiment import Experiment
from aoq.pipeline.config.sampling import BATCHES
from aoq.pipeline.config.training import CoTeaching, Schedule, Training
from aoq.pipeline.data.clean_pairs import CLEAN_PAIRS, read_clean_pairs
from aoq.pipeline.engine import Engine
from aoq.pipeline.stages.chain import Chain
from aoq.pipeline.stages.key import Roots, pretrained
from aoq.pipeline.stages.schedule import student_training
from aoq.pipeline.stages.splits import open_train_split, open_true_train_split

LATER_SAMPLING = {"gap", "sharpness", "windows", "hardness", "hardest", "guide_margin", "batches", *BATCHES}
LATER_CO_TEACHING = {"start_up", "precision"} | {
    name for name, field in Schedule.model_fields.items() if field.default is None
}
"""Options added later; they stay out of keys while unused."""


def plan_training(roots: Roots, experiment: Experiment, training: Training, dataset: Artifact) -> Artifact:
    """Plan a training on in-batch negatives alone: of a teacher, a control, or a student without a table."""
    ingredients = {**_model(experiment), "seed": experiment.seed, "training": _schedule(training)}
    return roots.artifact("first_round", ingredients, dataset)


def plan_import(roots: Roots, experiment: Experiment, option: str, dataset: Artifact) -> Artifact:
    """Plan imported weights, which replace a training."""
    weights = {"weights_sha256": roots.sha256(option, getattr(experiment, option))}
    return roots.artifact("first_round", {**_model(experiment), **weights}, dataset)


def plan_student(roots: Roots, chain: Chain, start: Artifact | None) -> Artifact:
    """Plan a second round on the dataset and the table, or its screen; from the weights of `start`, if given."""
    experiment, sampling = chain.experiment, chain.experiment.sampling
    unused = {name for name in LATER_SAMPLING if getattr(sampling, name) is None}
    ingredients = {
        **_model(experiment),
        "seed": experiment.seed,
        "training": _schedule(student_training(experiment.student)),
        "sampling": sampling.model_dump(mode="json", exclude=unused),
    }
    table, reads = chain["hard_negatives"], []
    if experiment.screen is not None:
        ingredients["suspected"] = experiment.screen.suspected
        table, reads = chain["screen"], [table]
    if sampling.guide_margin is not None:
        reads.append(chain["embeddings"])
    upstream = [chain["dataset"], table, *([] if start is None else [start])]
    return roots.artifact("second_round", ingredients, *upstream, reads=reads)


def plan_co_teaching(roots: Roots, experiment: Experiment, section: CoTeaching, dataset: Artifact) -> Artifact:
    """Plan two co-taught networks."""
    defaults = CoTeaching.model_fields
    later = {name for name in LATER_CO_TEACHING if getattr(section, name) == defaults[name].default}
    ingredients = {**_model(experiment), "seed": experiment.seed}
    ingredients["co_teaching"] = section.model_dump(mode="json", exclude=later)
    return roots.artifact("second_round", ingredients, dataset)


def _model(experiment: Experiment) -> dict[str, Any]:
    later = {"image_tower", "text_tower"} if experiment.model.attends else {"image_tower"}
    absent = {name for name in later if getattr(experiment.model, name, None) is None}
    model = experiment.model.model_dump(mode="json", exclude=absent)
    for option in ("image_tower", "text_tower"):
        if (tower := model.get(option)) is not None:
            model[option] = pretrained(tower)
    return {"model": model, "max_regions": experiment.dataset.max_regions}


def _schedule(training: Training) -> dict[str, Any]:
    """Return the options of the round; later ones stay out of keys while None, `precision` while float32."""
    ignored = set() if training.is_paced else {"start_up"}
    if training.precision == Training.model_fields["precision"].default:
        ignored.add("precision")
    return training.model_dump(mode="json", exclude_none=True, exclude=ignored)


def make_training(stage: str, chain: Chain, build: Build, engine: Engine) -> None:
    """Train the stage's model, or two that are co-taught; or import weights that fit the data."""
    from aoq.pipeline.stages.train import import_weights, train

    experiment = chain.experiment
    weights = {"first_round": experiment.teacher_weights, "second_round": experiment.weights}.get(stage)
    if weights is not None:
        import_weights(chain, stage, weights, build, engine)
        return
    build.notes |= train(chain, stage, build, engine)
    if stage == "second_round" and experiment.co_teaching is not None:
        _note_suspected(chain, experiment.co_teaching, build, engine)


def _note_suspected(chain: Chain, section: CoTeaching, build: Build, engine: Engine) -> None:
    """Note which fraction of the wrong pairs was suspected, if they are known."""
    seen, true = (opened(chain, engine.verify).image_of for opened in (open_train_split, open_true_train_split))
    wrong = seen != true
    if wrong.any():
        suspected = read_clean_pairs(build.directory / CLEAN_PAIRS, len(seen)) <= section.threshold
        pairs = {"of_wrong_pairs": wrong, "of_right_pairs": ~wrong}
        build.notes["suspected"] = {name: float(suspected[some].mean()) for name, some in pairs.items() if some.any()}
