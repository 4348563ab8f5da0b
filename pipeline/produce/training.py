"""Both rounds and the control: models trained, two networks co-taught, or imported weights in their place."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch

from aoq.models import MODELS, build_model
from aoq.models.base import MatchingModel
from aoq.pipeline.artifact import Artifact, Build
from aoq.pipeline.config.co_teaching import CoTeaching
from aoq.pipeline.config.training import Training
from aoq.pipeline.data.batches import PairData
from aoq.pipeline.data.clean_pairs import CLEAN_PAIRS, read_clean_pairs
from aoq.pipeline.data.folder import Split
from aoq.pipeline.embedding import similarity_matrix
from aoq.pipeline.engine import Engine
from aoq.pipeline.evaluation.retrieval import ensemble, evaluate_similarity
from aoq.pipeline.planning.chain import Chain
from aoq.pipeline.planning.fields import control_training, student_training
from aoq.pipeline.produce.inputs import (
    check_inputs,
    fingerprint,
    model_options,
    open_pairs,
    open_train_split,
    open_true_train_split,
)
from aoq.pipeline.progress import show_progress
from aoq.pipeline.search.problem import DIRECTIONS
from aoq.pipeline.tables.screens.view import read_view
from aoq.pipeline.tables.table import NegativeTable, read_table
from aoq.pipeline.training.checkpoint import load_model, read_weights, save_model
from aoq.pipeline.training.co_teaching.loop import co_teach
from aoq.pipeline.training.draw_weights import GapWeights, draw_weights, drawn_ranks, expected_rank
from aoq.pipeline.training.loop import train
from aoq.pipeline.training.resumable import Run, Validate
from aoq.pipeline.training.sampler import WHOLE, Sampler

logger = logging.getLogger(__name__)


def produce_first_round(chain: Chain, build: Build, engine: Engine) -> None:
    """The teacher: trained, or imported weights that fit the data, with their dev recalls."""
    experiment = chain.experiment
    if experiment.first_round is not None:
        _train(chain, experiment.first_round, None, build, engine)
    else:
        _import(chain, str(experiment.teacher_weights), build, engine)


def produce_control(chain: Chain, build: Build, engine: Engine) -> None:
    _train(chain, control_training(chain.experiment.student), None, build, engine)


def produce_second_round(chain: Chain, build: Build, engine: Engine) -> None:
    """The student, trained on the table; in its place imported weights, or two networks that are co-taught."""
    experiment = chain.experiment
    if experiment.weights is not None:
        _import(chain, experiment.weights, build, engine)
        return
    if experiment.co_teaching is not None:
        _co_teach(chain, experiment.co_teaching, build, engine)
        return
    student = student_training(experiment.student)
    if not student.loss.draws_offline:
        _train(chain, student, None, build, engine)
        return
    _dataset, _table, *start = chain["second_round"].upstream  # the last one if it is fine-tuned
    _train(chain, student, chain["hard_negatives"], build, engine, start=start[0] if start else None)


def _import(chain: Chain, file: str, build: Build, engine: Engine) -> None:
    """Weights of `aoq import-checkpoint`, if they fit the experiment's model and data, with their dev recalls."""
    experiment, path = chain.experiment, chain.data_root / file
    description, weights = read_weights(path)
    dev, expected = open_pairs(chain, "dev"), model_options(chain)
    wrong = {
        name: (description["options"].get(name), value)
        for name, value in expected.items()
        if description["options"].get(name) != value and not name.startswith("caption_")
    }  # VSRN's captioner has no part in its similarities, and official VSRN checkpoints come without
    if description["name"] != experiment.model.name or wrong:
        found = "; ".join(f"{name} is {theirs} there and {ours} here" for name, (theirs, ours) in wrong.items())
        raise ValueError(
            f"{path} holds a {description['name']!r}, the experiment a {experiment.model.name!r}; {found}. "
            "Set [model] to the file's options, and [dataset] vocabulary to the one it was trained with."
        )
    save_model(build.directory / "model.safetensors", weights, description)
    device = engine.torch_device()
    similarity = similarity_matrix(load_model(path).to(device), dev, device)
    build.notes["metrics"] = evaluate_similarity(similarity, dev.split.image_of)


def _train(
    chain: Chain,
    training: Training,
    table: Artifact | None,
    build: Build,
    engine: Engine,
    *,
    start: Artifact | None = None,
) -> None:
    """One model, fresh or from the weights of `start`, on the table if there is one."""

    def fit(description: dict[str, Any], pairs: PairData, validate: Validate, run: Run) -> dict[str, Any]:
        sampler = None
        if table is not None:
            sampler = _sampler(chain, read_table(table.path / "table", dataset=fingerprint(chain)), pairs.split)
        model, seed = _model(description, start), chain.experiment.seed
        return train(model, description, pairs, sampler, training, validate, seed=seed, run=run)

    _fit(chain, build, engine, training.loss.name, fit)


def _co_teach(chain: Chain, section: CoTeaching, build: Build, engine: Engine) -> None:
    """Two networks with the pairs they select as clean; where the wrong pairs are known, how many were found."""

    def fit(description: dict[str, Any], pairs: PairData, validate: Validate, run: Run) -> dict[str, Any]:
        models = _model(description, None), _model(description, None)
        return co_teach(models, description, pairs, section, validate, seed=chain.experiment.seed, run=run)

    _fit(chain, build, engine, "co-teaching", fit)
    seen, true = open_train_split(chain).image_of, open_true_train_split(chain).image_of
    wrong = seen != true
    if wrong.any():
        suspected = read_clean_pairs(build.directory / CLEAN_PAIRS, len(seen)) <= section.threshold
        shares = {"of_wrong_pairs": suspected[wrong].mean(), "of_right_pairs": suspected[~wrong].mean()}
        build.notes["suspected"] = {name: float(share) for name, share in shares.items()}


def _fit(
    chain: Chain,
    build: Build,
    engine: Engine,
    what: str,
    fit: Callable[[dict[str, Any], PairData, Validate, Run], dict[str, Any]],
) -> None:
    """What all trainings share: the seed, checked data, validation on dev (by the models' mean), the notes."""
    device, name = engine.torch_device(), chain.experiment.model.name
    torch.manual_seed(chain.experiment.seed)  # the one place: initial weights and dropout follow from it
    train_pairs, dev_pairs = open_pairs(chain, "train"), open_pairs(chain, "dev")
    description = {"name": name, "options": model_options(chain)}
    for pairs in (train_pairs, dev_pairs):
        check_inputs(MODELS[name], pairs)

    def validate(models: Sequence[MatchingModel]) -> dict[str, float]:
        scores = [similarity_matrix(model, dev_pairs, device) for model in models]
        mean = scores[0] if len(scores) == 1 else ensemble(scores)
        return evaluate_similarity(mean, dev_pairs.split.image_of)

    with show_progress(f"{chain.experiment.name} {what}") as report:
        run = Run(build.directory, device, engine.checkpoint_steps, engine.tensorboard, report)
        build.notes |= fit(description, train_pairs, validate, run)


def _model(description: dict[str, Any], start: Artifact | None) -> MatchingModel:
    """A fresh model, or one that goes on from the weights of `start`."""
    model = build_model(description["name"], **description["options"])
    if start is not None:
        path = start.path / "model.safetensors"
        try:
            model.load_state_dict(read_weights(path)[1])
        except RuntimeError as error:
            raise ValueError(f"[second_round] start: the weights in {path} do not fit: {error}") from None
    return model


def _sampler(chain: Chain, table: NegativeTable, split: Split) -> Sampler:
    """Draws from the table as [sampling] narrows it and [screen] sees it."""
    screen, sampling = chain.experiment.screen, chain.experiment.sampling
    view = read_view(chain["screen"].path / "view", table.manifest) if screen else None
    gaps = None
    if sampling.gap is not None and sampling.sharpness is not None:
        gaps = GapWeights(sampling.gap, sampling.sharpness)
    batch_size = chain.experiment.student.batch_size
    asked = {
        "i2t": (sampling.h_captions, split.caption_count, "captions"),
        "t2i": (sampling.h_images, split.image_count, "images"),
    }
    ids, weights = {}, {}
    for direction in DIRECTIONS:
        (h, candidates, what), lists, after = asked[direction], table[direction], 0
        if sampling.harder is not None:
            h = max(1, min(lists.h, expected_rank(candidates, batch_size, sampling.harder)))
            after = 0 if sampling.hardest is None else expected_rank(candidates, batch_size, sampling.hardest)
            logger.info("draws from ranks %d to %d of %d %s", after, h, candidates, what)
        ranks = drawn_ranks(direction, lists.negative_ids, h=h, after=after)
        ids[direction] = lists.negative_ids[:, ranks]
        weights[direction] = draw_weights(
            direction,
            lists,
            ranks,
            judged=view[direction] if view else None,
            suspected=screen.suspected if screen else "drop",
            gaps=gaps,
        )
    return Sampler(
        ids["i2t"],
        ids["t2i"],
        split.image_of,
        i2t_weights=weights["i2t"],
        t2i_weights=weights["t2i"],
        strategy=sampling.strategy,
        resample=sampling.resample,
        windows=sampling.windows or WHOLE,
    )
