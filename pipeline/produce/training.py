"""Produce both rounds and the control: trained models, two co-taught networks, or imported weights."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from aoq.models import MODELS, build_model
from aoq.models.base import MatchingModel
from aoq.pipeline.artifact import Artifact
from aoq.pipeline.build import Build, code_versions
from aoq.pipeline.config.training import CoTeaching, Training
from aoq.pipeline.console import show_progress
from aoq.pipeline.data.clean_pairs import CLEAN_PAIRS, read_clean_pairs
from aoq.pipeline.data.folder import Split
from aoq.pipeline.embedding import similarity_matrix
from aoq.pipeline.engine import Engine, torchrun_rank
from aoq.pipeline.evaluation.ranks import DEV_RANKS, write_ranks
from aoq.pipeline.evaluation.retrieval import Ranks, ensemble, retrieval_ranks, summarise
from aoq.pipeline.inputs import collected, planned_file
from aoq.pipeline.mining.depths import Fitting
from aoq.pipeline.planning.chain import Chain
from aoq.pipeline.planning.keys import control_training, student_training
from aoq.pipeline.prepare.pixels import decoded_elsewhere
from aoq.pipeline.produce.data import (
    check_inputs,
    check_pretrained,
    model_options,
    open_pairs,
    open_train_split,
    open_true_train_split,
)
from aoq.pipeline.produce.drawing import open_table
from aoq.pipeline.produce.outcome import say_outcome
from aoq.pipeline.produce.ranks import follow, joined, run_ranks
from aoq.pipeline.produce.student_draws import make_guide, make_orders, make_sampler
from aoq.pipeline.training.checkpoint import load_model, read_weights, save_model
from aoq.pipeline.training.co_teaching import FILES, CoTrainer
from aoq.pipeline.training.loop import Loop, Run
from aoq.pipeline.training.processes import ALONE, Processes
from aoq.pipeline.training.trainer import Trainer

logger = logging.getLogger(__name__)


def produce_first_round(chain: Chain, build: Build, engine: Engine) -> None:
    """Train the teacher, or import weights that fit the data, with their dev recalls."""
    experiment = chain.experiment
    if experiment.first_round is not None:
        _train(chain, "first_round", build, engine)
    else:
        _import(chain, "first_round", str(experiment.teacher_weights), build, engine)


def _announce_short_lists(chain: Chain, split: Split) -> None:
    """Say it before the teacher trains if the data cannot fill the lists of [mining]."""
    if (mining := chain.experiment.mining) is not None:
        counts = split.image_count, split.caption_count
        fitting = Fitting.to(split.positives, *counts, h_captions=mining.h_captions, h_images=mining.h_images)
        if fitting.said:
            logger.warning("[mining] %s", fitting.said)


def produce_control(chain: Chain, build: Build, engine: Engine) -> None:
    _train(chain, "control", build, engine)


def produce_second_round(chain: Chain, build: Build, engine: Engine) -> None:
    """Train the student on the table; instead import weights, or co-teach two networks."""
    experiment = chain.experiment
    if experiment.weights is not None:
        _import(chain, "second_round", experiment.weights, build, engine)
    else:
        _train(chain, "second_round", build, engine)
        if experiment.co_teaching is not None:
            _note_suspected(chain, experiment.co_teaching, build, engine)


def _import(chain: Chain, stage: str, file: str, build: Build, engine: Engine) -> None:
    """Take weights of `aoq import-checkpoint` that fit the experiment's model and data, with their dev recalls."""
    experiment = chain.experiment
    path = planned_file(chain.data_root, file, chain[stage].ingredients["weights_sha256"])
    description, weights = read_weights(path)
    dev, expected = open_pairs(chain, "dev", engine.verify), model_options(chain)
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
    ranks = retrieval_ranks(similarity, dev.split.image_of, dev.split.identity)
    write_ranks(build.directory / DEV_RANKS, ranks)
    build.notes["metrics"] = summarise(ranks)


def _training(chain: Chain, stage: str) -> tuple[Training, bool]:
    """Return the training of a stage, and whether it is on a table."""
    experiment = chain.experiment
    if stage == "first_round":
        assert experiment.first_round is not None  # without it this stage does not train
        return experiment.first_round, False
    if stage == "control":
        return control_training(experiment.student), False
    return student_training(experiment.student), chain.trains_on_table


def _train(chain: Chain, stage: str, build: Build, engine: Engine) -> None:
    """Train one model, or two that are co-taught, with torchrun's processes or as many as the engine has."""
    if torchrun_rank() is not None:
        with joined(engine, chain[stage].key) as processes:
            build.notes |= _train_part(chain, stage, build, engine, processes)
    elif engine.processes == 1:
        build.notes |= _train_part(chain, stage, build, engine, ALONE)
    else:
        (notes, inputs), nodes = run_ranks(engine, build.directory, partial(train_rank, stage, chain, build.directory))
        build.recall_inputs()
        build.inputs.content |= inputs
        build.notes |= {**notes, **nodes}


def follow_stage(stage: str, source: Any, artifact: Artifact, engine: Engine) -> None:
    """Do what torchrun's other processes do while the first one makes a stage: train with it, or wait."""
    follow(engine, artifact, partial(train_rank, stage, source, None))


def train_rank(
    stage: str, chain: Chain, directory: Path | None, processes: Processes, engine: Engine
) -> tuple[dict[str, Any], dict[str, str]]:
    """Train in the work directory that another process has locked, or follow; the leader returns notes and inputs.

    All but the leader record their inputs in a temporary folder.
    """
    if not processes.leads or directory is None:
        with TemporaryDirectory() as folder:
            build = Build(Path(folder))
            with collected(build.inputs):
                _train_part(chain, stage, build, replace(engine, tensorboard=False), processes)
        return {}, {}
    build = Build(directory)
    build.recall_inputs()
    with collected(build.inputs):
        notes = _train_part(chain, stage, build, engine, processes)
    build.inputs.check_again()
    return notes, build.inputs.content


def _train_part(chain: Chain, stage: str, build: Build, engine: Engine, processes: Processes) -> dict[str, Any]:
    """Do this process's part of a training; the leader returns the manifest's notes."""
    section = chain.experiment.co_teaching
    if stage == "second_round" and section is not None:
        return _co_teach(chain, section, build, engine, processes)
    return _train_one(chain, stage, build, engine, processes)


def _train_one(chain: Chain, stage: str, build: Build, engine: Engine, processes: Processes) -> dict[str, Any]:
    """Train one model, fresh, or on the table from the weights of the chain's `start`, if any."""
    training, on_table = _training(chain, stage)
    with _prepared(chain, build, engine, training.loss.name, processes) as (validate, given, dev):
        sampler, orders = None, None
        if stage == "first_round" and processes.leads:
            _announce_short_lists(chain, given["pairs"].split)
        if on_table:
            split, (table, view) = given["pairs"].split, open_table(chain)
            orders = make_orders(chain, split, table, view)
            sampler = make_sampler(chain, split, table, view) if training.loss.draws_offline else None
        model = _model(given)
        if on_table and chain.start is not None:
            path = chain.start.opened() / "model.safetensors"
            try:
                model.load_state_dict(read_weights(path)[1])
            except RuntimeError as error:
                raise ValueError(f"[second_round] start: the weights in {path} do not fit: {error}") from None
        guide = make_guide(chain) if on_table else None
        training = _with_numbers_of_pair(training, model)
        trainer = Trainer(models=[model], schedule=training, sampler=sampler, orders=orders, guide=guide, **given)
        return _in_step(trainer, validate, chain, build, dev)


def _in_step(trainer: Loop, validate: Callable[..., Any], chain: Chain, build: Build, dev: Split) -> dict[str, Any]:
    """Lead the training, or follow, where all processes have the same code, data and settings."""
    processes = trainer.run.processes
    if processes.are_several:
        processes.check_alike({"experiment": repr(chain.experiment), **code_versions(), **build.inputs.content})
    if processes.leads:
        notes = trainer.train(validate)
        say_outcome(chain, trainer.schedule, notes, dev)
        return notes
    trainer.train(validate)
    return {}


def _co_teach(chain: Chain, section: CoTeaching, build: Build, engine: Engine, processes: Processes) -> dict[str, Any]:
    """Co-teach two networks."""
    with _prepared(chain, build, engine, "co-teaching", processes) as (validate, given, dev):
        models = [_model(given) for _ in FILES]
        return _in_step(CoTrainer(models=models, section=section, **given), validate, chain, build, dev)


def _note_suspected(chain: Chain, section: CoTeaching, build: Build, engine: Engine) -> None:
    """Note which fraction of the wrong pairs was suspected, if they are known."""
    seen, true = (opened(chain, engine.verify).image_of for opened in (open_train_split, open_true_train_split))
    wrong = seen != true
    if wrong.any():
        suspected = read_clean_pairs(build.directory / CLEAN_PAIRS, len(seen)) <= section.threshold
        pairs = {"of_wrong_pairs": wrong, "of_right_pairs": ~wrong}
        build.notes["suspected"] = {name: float(suspected[of].mean()) for name, of in pairs.items() if of.any()}


def _model(given: Mapping[str, Any]) -> MatchingModel:
    model = build_model(given["description"]["name"], **given["description"]["options"])
    model.load_pretrained()
    return model


def _with_numbers_of_pair(training: Training, model: MatchingModel) -> Training:
    """The temperature of the pretrained pair, and the bias of a loss that has one, where the loss asks for it."""
    if getattr(training.loss, "temperature", None) != "pair":
        return training
    known = training.loss.numbers
    numbers = {name: value for name, value in model.pair_numbers().items() if name in known}
    return training.model_copy(update={"loss": training.loss.model_copy(update=numbers)})


@contextmanager
def _prepared(
    chain: Chain, build: Build, engine: Engine, what: str, processes: Processes
) -> Iterator[tuple[Callable[[Sequence[MatchingModel]], Any], dict[str, Any], Split]]:
    """Yield what all trainings share: validation on dev (by the models' mean), a trainer's keyword arguments, dev."""
    device = processes.device if processes.are_several else engine.torch_device()
    name = chain.experiment.model.name
    check_pretrained(chain)
    torch.manual_seed(chain.experiment.seed)  # the one place: initial weights and dropout follow from it
    train_pairs, dev_pairs = (open_pairs(chain, role, engine.verify) for role in ("train", "dev"))
    for pairs in (train_pairs, dev_pairs):
        check_inputs(MODELS[name], pairs)

    def validate(models: Sequence[MatchingModel]) -> Ranks | None:
        images = dev_pairs.split.image_count
        rows = np.arange(images)[processes.rows(images)]
        scores = [similarity_matrix(model, dev_pairs, device, rows=rows) for model in models]
        mean = processes.rows_to_leader(scores[0] if len(scores) == 1 else ensemble(scores), images)
        return retrieval_ranks(mean, dev_pairs.split.image_of, dev_pairs.split.identity) if processes.leads else None

    with ExitStack() as stack:
        if train_pairs.pixels is not None and engine.workers > 1:
            pixels = stack.enter_context(decoded_elsewhere(train_pairs.pixels, engine.workers))
            train_pairs = replace(train_pairs, pixels=pixels)
        shown = show_progress(f"{chain.experiment.name} {what}") if processes.leads else nullcontext(_say_nothing)
        report = stack.enter_context(shown)
        run = Run(
            build.directory, device, engine.checkpoint_steps, engine.tensorboard, report, engine.workers, processes
        )
        description = {"name": name, "options": model_options(chain)}
        given = {"description": description, "pairs": train_pairs, "seed": chain.experiment.seed, "run": run}
        yield validate, given, dev_pairs.split


def _say_nothing(done: int, total: int, text: str) -> None:
    return
