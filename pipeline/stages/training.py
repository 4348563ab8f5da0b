"""Trainings: the first round, the control, and the second round; or imported weights instead of one."""

from __future__ import annotations

from typing import Any

from aoq.pipeline.artifact import Artifact
from aoq.pipeline.build import Build
from aoq.pipeline.config.training import CoTeaching, Schedule, Training
from aoq.pipeline.data.noise import CLEAN_PAIRS, read_clean_pairs
from aoq.pipeline.engine import Engine
from aoq.pipeline.stages.chain import Chain, pretrained
from aoq.pipeline.stages.splits import open_train_split, open_true_train_split


def plan_training(chain: Chain, use: str, training: Training) -> None:
    """Plan a training on in-batch negatives alone: of a teacher, a control, or a student without a table."""
    options, teachers = _options(chain, use, training)
    ingredients = {**_model(chain), "seed": chain.experiment.seed, "training": options}
    chain.add("first_round", ingredients, chain["dataset"], *teachers, use=use)


def plan_import(chain: Chain, use: str, option: str) -> None:
    """Plan imported weights, which replace a training."""
    weights = {"weights_sha256": chain.sha256(option, getattr(chain.experiment, option))}
    chain.add("first_round", {**_model(chain), **weights}, chain["dataset"], use=use)


def plan_student(chain: Chain, start: Artifact | None) -> None:
    """Plan a second round on the dataset and the table, or its screen; from the weights of `start`, if given."""
    experiment, sampling = chain.experiment, chain.experiment.sampling
    training = experiment.student.as_trained
    options, teachers = _options(chain, "second_round", training)
    depths = {"h_captions": sampling.h_captions, "h_images": sampling.h_images}  # other options came later
    ingredients = {
        **_model(chain),
        "seed": experiment.seed,
        "training": options,
        "sampling": depths | sampling.model_dump(mode="json", exclude_none=True),
    }
    table, reads = chain["hard_negatives"], []
    if experiment.screen is not None:
        ingredients["suspected"] = experiment.screen.suspected
        table, reads = chain["screen"], [table]
    if sampling.guide_margin is not None:
        reads.append(chain["embeddings"])
    others = [*([] if start is None else [start]), *teachers]
    chain.add("second_round", ingredients, chain["dataset"], table, *others, reads=reads)


def plan_co_teaching(chain: Chain, section: CoTeaching) -> None:
    """Plan two co-taught networks."""
    options = section.model_dump(mode="json", exclude=_unused(section))
    ingredients = {**_model(chain), "seed": chain.experiment.seed, "co_teaching": options}
    chain.add("second_round", ingredients, chain["dataset"])


def _options(chain: Chain, stage: str, training: Training) -> tuple[dict[str, Any], list[Artifact]]:
    """Return the options that determine a training, and its teachers' embeddings; files count by their hashes."""
    exclude: dict[str, Any] = dict.fromkeys(_unused(training), True)
    if training.distillation is None:
        return training.model_dump(mode="json", exclude_none=True, exclude=exclude), []
    exclude["distillation"] = {"teachers"}
    options = training.model_dump(mode="json", exclude_none=True, exclude=exclude)
    option = f"[{stage}.distillation] teachers"
    options["distillation"]["files"] = [
        {name: [chain.sha256(option, path), part] for name, (path, part) in files.parts.items()}
        for files in training.distillation.files
    ]
    return options, [member.artifact for member in chain.distilled.get(stage, ())]


def _model(chain: Chain) -> dict[str, Any]:
    section = chain.experiment.model
    later = {"image_tower", "text_tower"} if section.attends else {"image_tower"}
    model = section.model_dump(mode="json", exclude={name for name in later if getattr(section, name, None) is None})
    for option in ("image_tower", "text_tower"):
        if (tower := model.get(option)) is not None:
            model[option] = pretrained(tower)
    return {"model": model, "max_regions": chain.experiment.dataset.max_regions}


def _unused(section: Schedule) -> set[str]:
    """Return later options that stay out of keys: those that are None, an unused `start_up`, `precision` if float32."""
    unused = {name for name in type(section).model_fields if name != "rectify_from" and getattr(section, name) is None}
    if isinstance(section, Training) and not section.is_paced:
        unused.add("start_up")
    return unused if section.precision != "float32" else unused | {"precision"}


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
