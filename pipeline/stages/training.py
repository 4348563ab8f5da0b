"""Trainings: the first round, the control, and the second round; or imported weights instead of one."""

from __future__ import annotations

from typing import Any

from aoq.pipeline.artifact import Artifact
from aoq.pipeline.build import Build
from aoq.pipeline.config.screen import VECTOR_RULES
from aoq.pipeline.config.training import CoTeaching, Schedule, Training
from aoq.pipeline.engine import Engine
from aoq.pipeline.stages.chain import Chain, check_same_data, fit_lengths, pretrained, table_depths

WEIGHTS = {"first_round": "teacher_weights", "second_round": "weights"}
"""Options of imported weights that replace a training, by its use."""


def plan_training(chain: Chain, use: str) -> None:
    """Plan the training of a teacher, of a control or of a student; or imported weights in its place."""
    experiment, data, model = chain.experiment, chain["dataset"], _model(chain)
    if (weights := getattr(experiment, WEIGHTS.get(use, ""), None)) is not None:
        chain.add("first_round", {**model, "weights_sha256": chain.sha256(WEIGHTS[use], weights)}, data, use=use)
        return
    section, ingredients = experiment.trained_by(use), {**model, "seed": experiment.seed}
    if isinstance(section, CoTeaching):
        options = section.model_dump(mode="json", exclude=_unused(section))
        chain.add("second_round", {**ingredients, "co_teaching": options}, data)
        return
    ingredients["training"] = _training_options(chain, use, section)
    if experiment.model.name == "naaf":
        ingredients["thresholds"] = "kept at few words"
    if section.ema is not None:
        ingredients["average"] = "of buffers too"
    distilled = chain.distilled.get(use, ())
    teachers = [member.artifact for member in distilled]
    reads = [member.chain["dataset"] for member in distilled if member.stage == "second_round"]
    starts = use == "second_round" or (use == "control" and experiment.student.control_continues)
    start = _start(_first_tuned(chain) if use == "control" else chain) if starts else []
    if start and getattr(section.loss, "learn_temperature", False):
        ingredients["temperature"] = "continued"
    if use != "second_round" or not experiment.uses_table:
        version = 1 if section.constraints is None else 2
        chain.add("first_round", ingredients, data, *start, *teachers, reads=reads, version=version, use=use)
        return
    table, sampling = chain["hard_negatives"], experiment.sampling
    depths = {"h_captions": sampling.h_captions, "h_images": sampling.h_images}  # other options came later
    ingredients["sampling"] = depths | sampling.model_dump(mode="json", exclude_none=True)
    if experiment.screen is not None:
        ingredients["suspected"] = experiment.screen.suspected
        table, reads = chain["screen"], [*reads, table]
    version = 3 if section.distillation is not None and section.distillation.listed else 2
    if sampling.guides:
        reads.append(chain["embeddings"])
    chain.add("second_round", ingredients, data, table, *start, *teachers, reads=reads, version=version)


def check_table(chain: Chain) -> None:
    """Refuse a table of other data, one that is too short, or one without vectors where some are needed."""
    experiment, owner = chain.experiment, chain.owner("hard_negatives")
    check_same_data(experiment.name, chain, owner)
    fit_lengths(experiment.sampling, table_depths(chain), "[sampling]", "the table keeps")
    distillation, is_by_rank = experiment.student.distillation, getattr(owner.table, "method", None) == "rank"
    if is_by_rank and distillation and distillation.listed and distillation.list_loss != "ranking":
        lacks = f"{distillation.list_loss!r} needs the scores of positives, which a table fused by ranks lacks"
        raise ValueError(f'[second_round.distillation] list_loss = {lacks}; choose "ranking", or fuse by "score".')
    if "embeddings" in owner.stages:
        return
    from_none = f"the teacher's vectors, and the table of {experiment.teacher or experiment.name} has none"
    if guides := experiment.sampling.guides:
        raise ValueError(f"[sampling] {guides[0]} needs {from_none}; leave it out.")
    if experiment.screen is not None and experiment.screen.needs_vectors:
        raise ValueError(f"[screen] {', '.join(VECTOR_RULES)} need {from_none}; leave these rules out.")


def _first_tuned(chain: Chain) -> Chain:
    """Return the chain before all refreshes."""
    while chain.experiment.refresh is not None and chain.experiment.refresh.rounds:
        chain = chain.owner("hard_negatives").members[-1].chain
    return chain


def _start(chain: Chain) -> list[Artifact]:
    """Return the training whose weights a fine-tuned student starts from; none for fresh weights."""
    experiment = chain.experiment
    if experiment.student.start != "teacher":
        return [chain["control"]] if experiment.student.start == "control" else []
    owner = chain.owner("hard_negatives")
    if experiment.refresh is not None and experiment.refresh.rounds:
        return [owner.members[-1].artifact]
    remedy = 'start = "control" takes the student\'s own weights after the online loss.'
    if "first_round" not in owner.stages:
        table = f"the table of {owner.experiment.name!r} is made by an encoder or from other tables"
        raise ValueError(f'[second_round] start = "teacher", but {table}, not by a first round; {remedy}')
    ours, theirs = (one["dataset"].ingredients["vocabulary"] for one in (chain, owner))
    if owner.experiment.model != experiment.model or ours != theirs:
        names = f"({owner.experiment.model.name!r}, here {experiment.model.name!r})"
        other = f"{experiment.teacher!r} has another [model] or vocabulary {names}, so its weights do not fit"
        raise ValueError(f'[second_round] start = "teacher", but {other}; {remedy}')
    return [owner["first_round"]]


def _training_options(chain: Chain, use: str, training: Training) -> dict[str, Any]:
    """Return the options that determine a training; files of teachers count by their hashes."""
    exclude: dict[str, Any] = {**dict.fromkeys(_unused(training), True), "distillation": {"teachers"}}
    options = training.model_dump(mode="json", exclude_none=True, exclude=exclude)
    if training.distillation is not None:
        option = f"[{use}.distillation] teachers"
        options["distillation"]["files"] = [
            {name: [chain.sha256(option, path), part] for name, (path, part) in files.parts.items()}
            for files in training.distillation.files
        ]
    return options


def _model(chain: Chain) -> dict[str, Any]:
    section = chain.experiment.model
    later = {"image_tower", "text_tower"} if section.attends else {"image_tower"}
    model = section.model_dump(mode="json", exclude=later - section.towers.keys())
    model |= {option: pretrained(tower) for option, tower in section.towers.items()}
    return {"model": model, "max_regions": chain.experiment.dataset.max_regions}


def _unused(section: Schedule) -> set[str]:
    """Return later options that stay out of keys: those that are None, an unused `start_up`, `precision` if float32."""
    unused = {name for name in type(section).model_fields if name != "rectify_from" and getattr(section, name) is None}
    unused |= {"control"} & type(section).model_fields.keys()  # it changes another training
    if isinstance(section, Training) and not section.is_paced:
        unused.add("start_up")
    return unused if section.precision != "float32" else unused | {"precision"}


def make_training(stage: str, chain: Chain, build: Build, engine: Engine) -> None:
    """Train the stage's model, or two that are co-taught; or import weights that fit the data."""
    from aoq.pipeline.stages.train import import_weights, train

    if (weights := getattr(chain.experiment, WEIGHTS.get(stage, ""), None)) is not None:
        import_weights(chain, stage, weights, build, engine)
    else:
        build.notes |= train(chain, stage, build, engine)
