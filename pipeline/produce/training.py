"""Both rounds and the control: models trained, or imported weights in their place."""

from __future__ import annotations

import logging
from typing import Any

import torch

from aoq.models import MODELS, build_model
from aoq.models.base import MatchingModel
from aoq.pipeline.artifact import Artifact, Build
from aoq.pipeline.config.training import Training
from aoq.pipeline.data.folder import Split
from aoq.pipeline.embedding import similarity_matrix
from aoq.pipeline.engine import Engine
from aoq.pipeline.evaluation.retrieval import evaluate_similarity
from aoq.pipeline.planning.chain import Chain
from aoq.pipeline.planning.keys import control_training, student_training
from aoq.pipeline.produce.co_teaching import co_teach_networks
from aoq.pipeline.produce.inputs import check_inputs, fingerprint, model_options, open_pairs
from aoq.pipeline.progress import show_progress
from aoq.pipeline.search.problem import DIRECTIONS
from aoq.pipeline.tables.screens.view import read_view
from aoq.pipeline.tables.table import NegativeTable, read_table
from aoq.pipeline.training.checkpoint import load_model, read_weights, save_model
from aoq.pipeline.training.draw_weights import GapWeights, draw_weights, drawn_ranks, expected_rank
from aoq.pipeline.training.loop import Run, train
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
        co_teach_networks(chain, experiment.co_teaching, build, engine)
        return
    table = chain["hard_negatives"] if chain.trains_on_table else None
    _train(chain, student_training(experiment.student), table, build, engine, start=chain.start)


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
    device = engine.torch_device()
    seed = chain.experiment.seed
    torch.manual_seed(seed)  # the one place: initial weights and dropout follow from it
    train_pairs, dev_pairs = open_pairs(chain, "train"), open_pairs(chain, "dev")
    name, options = chain.experiment.model.name, model_options(chain)
    for pairs in (train_pairs, dev_pairs):
        check_inputs(MODELS[name], pairs)
    sampler = None
    if table is not None:
        sampler = _sampler(chain, read_table(table.path / "table", dataset=fingerprint(chain)), train_pairs.split)

    def validate(model: MatchingModel) -> dict[str, float]:
        return evaluate_similarity(similarity_matrix(model, dev_pairs, device), dev_pairs.split.image_of)

    with show_progress(f"{chain.experiment.name} {training.loss.name}") as report:
        build.notes |= train(
            _model(name, options, start),
            {"name": name, "options": options},
            train_pairs,
            sampler,
            training,
            validate,
            seed=seed,
            run=Run(build.directory, device, engine.checkpoint_steps, engine.tensorboard, report),
        )


def _model(name: str, options: dict[str, Any], start: Artifact | None) -> MatchingModel:
    """A fresh model, or one that goes on from the weights of `start`."""
    model = build_model(name, **options)
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
