"""Train the model of a stage, or import its weights; the only place where a training is assembled."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from aoq.models import build_model
from aoq.models.base import MatchingModel
from aoq.pipeline.artifact import Artifact
from aoq.pipeline.build import Build, code_versions, planned_file
from aoq.pipeline.config.experiment import Experiment
from aoq.pipeline.config.losses import LogitLoss
from aoq.pipeline.config.training import CoTeaching, Training
from aoq.pipeline.console import show_progress
from aoq.pipeline.data.folder import Split
from aoq.pipeline.data.pixels import decoded_elsewhere
from aoq.pipeline.embedding import similarity_matrix
from aoq.pipeline.engine import Engine, Verify, torchrun_rank
from aoq.pipeline.evaluation.ranks import DEV_RANKS, chance_level, write_ranks
from aoq.pipeline.evaluation.retrieval import ensemble, retrieval_ranks, summarise
from aoq.pipeline.stages.chain import Chain
from aoq.pipeline.stages.data import check_pretrained
from aoq.pipeline.stages.draws import make_teachers, table_draws
from aoq.pipeline.stages.hard_negatives import shortened
from aoq.pipeline.stages.processes import joined, run_ranks
from aoq.pipeline.stages.splits import model_options, open_pairs
from aoq.pipeline.training.checkpoint import load_model, read_weights, save_model
from aoq.pipeline.training.co_teaching import NETWORK_FILES, CoTrainer
from aoq.pipeline.training.loop import Loop, Run
from aoq.pipeline.training.processes import ALONE, Processes
from aoq.pipeline.training.trainer import Trainer

logger = logging.getLogger(__name__)

EASY = 0.2
"""Least fraction of offline negatives harder than their batch's hardest. Gains were seen from 0.38 on, none at 0.14."""


def train(chain: Chain, stage: str, build: Build, engine: Engine, processes: Processes | None = None) -> dict[str, Any]:
    """Train the stage's model, or both co-taught networks, and return the manifest's notes.

    Without `processes`, train in this one, join torchrun's, or start the engine's; all but the leader follow it.
    """
    if processes is None and torchrun_rank() is None and engine.processes > 1:
        (notes, inputs), nodes = run_ranks(engine, build.directory, partial(train_rank, chain, stage, build.directory))
        build.recall_inputs()
        build.inputs |= inputs
        return {**notes, **nodes}
    section = chain.experiment.trained_by(stage)
    with ExitStack() as stack:
        alone = torchrun_rank() is None
        group = processes or (ALONE if alone else stack.enter_context(joined(engine, chain[stage].key)))
        device = group.device if group.are_several else engine.torch_device()
        if group.leads:
            logger.info("training on %s, threads: %d", device, torch.get_num_threads())
        check_pretrained(chain)
        torch.manual_seed(chain.experiment.seed)  # the one place: initial weights and dropout follow from it
        pairs, dev = (open_pairs(chain, role, engine.verify) for role in ("train", "dev"))
        _check_batches(chain.experiment, pairs.split.caption_count)

        def validate(models: Sequence[MatchingModel]) -> Any:
            images = dev.split.image_count
            rows = np.arange(images)[group.rows(images)]
            scores = [similarity_matrix(model, dev, device, rows=rows) for model in models]
            mean = group.rows_to_leader(scores[0] if len(scores) == 1 else ensemble(scores))
            return retrieval_ranks(mean, dev.split.image_of, dev.split.identity) if group.leads else None

        if pairs.pixels is not None and engine.workers > 1:
            pairs = replace(pairs, pixels=stack.enter_context(decoded_elsewhere(pairs.pixels, engine.workers)))
        title = "co-teaching" if isinstance(section, CoTeaching) else section.loss.name
        shown = show_progress(f"{chain.experiment.name} {title}") if group.leads else nullcontext(lambda *_: None)
        progress = stack.enter_context(shown)
        run = Run(build.directory, device, engine.checkpoint_steps, engine.tensorboard, progress, engine.workers, group)
        description = {"name": chain.experiment.model.name, "options": model_options(chain)}
        common = {"description": description, "pairs": pairs, "seed": chain.experiment.seed, "run": run}
        trainer = _make_trainer(chain, stage, section, engine.verify, **common)
        if group.are_several:
            group.check_same({"experiment": repr(chain.experiment), **code_versions(), **build.inputs})
        notes = trainer.train(validate)
        if group.leads:
            report_outcome(chain, trainer.schedule, notes, dev.split)
        return notes


def _check_batches(experiment: Experiment, captions: int) -> None:
    sizes = [(f"[{name}] batch_size is", section.batch_size, "it") for name, section in experiment.trainings.items()]
    if experiment.second_round is not None and experiment.second_round.control == "items":
        makes = '[second_round] control = "items" makes batches of'
        sizes.append((makes, experiment.trained_by("control").batch_size, "batch_size"))
    for what, size, option in sizes:
        if size > captions:
            split = f"the training split has {captions} captions"
            raise ValueError(f"{experiment.name}: {what} {size}, but {split}; lower {option}.")


def _make_trainer(chain: Chain, stage: str, section: Training | CoTeaching, verify: Verify, **common: Any) -> Loop:
    """Assemble models, draws and teachers; a fine-tuned student starts from saved weights."""
    if isinstance(section, CoTeaching):
        models = [_fresh_model(**common["description"]) for _ in NETWORK_FILES]
        return CoTrainer(models=models, section=section, **common)
    split, draws = common["pairs"].split, dict[str, Any](sampler=None)
    if stage == "first_round" and chain.experiment.mining is not None and common["run"].processes.leads:
        shortened(split, chain.experiment.mining)  # logs it before the teacher trains
    if stage == "second_round" and chain.trains_on_table:
        draws = table_draws(chain, split, section)
    model = _fresh_model(**common["description"])
    schedule = _with_numbers_of_pair(section, model)
    if (start := chain.start_of(stage)) is not None:
        weights = read_weights(start.opened() / "model.safetensors")[1]
        model.load_state_dict({**model.state_dict(), **weights})  # imported weights may lack VSRN's captioner
        schedule = _with_learnt_numbers(schedule, start)
    teachers = make_teachers(chain, stage, section, split, common["run"], verify)
    return Trainer(models=[model], schedule=schedule, **teachers, **draws, **common)


def _fresh_model(name: str, options: Mapping[str, Any]) -> MatchingModel:
    model = build_model(name, **options)
    model.load_pretrained()
    return model


def _with_numbers_of_pair(training: Training, model: MatchingModel) -> Training:
    """Take the temperature, and the bias, of the pretrained pair of towers where the loss asks for them."""
    if getattr(training.loss, "temperature", None) != "pair":
        return training
    numbers = {name: value for name, value in model.pair_numbers().items() if name in training.loss.numbers}
    if hasattr(training.loss, "max_scale"):  # a SigLIP scales by more than a CLIP
        numbers["max_scale"] = max(training.loss.max_scale, 1 / numbers["temperature"])
    return training.model_copy(update={"loss": training.loss.model_copy(update=numbers)})


def _with_learnt_numbers(training: Training, start: Artifact) -> Training:
    """Continue with the numbers that the loss learnt in the training from which this one starts."""
    notes, loss = start.manifest(), training.loss
    if not isinstance(loss, LogitLoss) or not loss.learn_temperature or "learnt_by_epoch" not in notes:
        return training
    learnt = notes["learnt_by_epoch"][notes["best_epoch"]]
    numbers = {name: value for name, value in learnt.items() if name in loss.numbers}
    logger.info("the loss continues with %s", ", ".join(f"{name} {value:.4g}" for name, value in numbers.items()))
    return training.model_copy(update={"loss": loss.model_copy(update=numbers)})


def report_outcome(chain: Chain, training: Training, notes: Mapping[str, Any], dev: Split) -> None:
    """Warn of a best epoch near chance; log how hard the offline negatives were."""
    chance, reached = chance_level(dev.image_of, dev.identity), notes["metrics"]["rsum"]
    if at_chance := chance.explains(reached):
        remedy = "" if training.start_up or not training.loss.takes_pace else ' with start_up = "auto", or'
        nothing = f"dev rsum {reached:.1f} is near chance ({chance.rsum:.1f}): nothing learnt generalises to dev"
        check = f"`aoq data check {chain.folder}` finds missing lines, not swapped ones"
        lines = f"Check that each line of captions belongs to its image ({check})"
        logger.warning("%s. %s; if so, train%s longer.", nothing, lines, remedy)
    if harder := notes.get("offline_harder_by_epoch"):
        text = f"{harder[-1]:.0%} of the offline negatives were harder to this model than the hardest of their batch"
        adds_little = not at_chance and harder[-1] < EASY
        logger.info("in the last epoch, %s", text + (": the table adds little to its batches" if adds_little else ""))


def import_weights(chain: Chain, stage: str, file: str, build: Build, engine: Engine) -> None:
    """Take weights of `aoq import-checkpoint` that fit the experiment's model and data, with their dev recalls."""
    path = planned_file(chain.data_root, file, chain[stage].ingredients["weights_sha256"])
    description, weights = read_weights(path)
    dev, name, theirs = open_pairs(chain, "dev", engine.verify), chain.experiment.model.name, description["options"]
    differences = [
        f"{option} is {theirs.get(option)} there and {ours} here"
        for option, ours in model_options(chain).items()
        if theirs.get(option) != ours and not option.startswith("caption_")
    ]  # VSRN's captioner does not shape its similarities, and official VSRN checkpoints come without one
    if description["name"] != name or differences:
        raise ValueError(
            f"{path} holds a {description['name']!r}, the experiment a {name!r}; {'; '.join(differences)}. "
            "Set [model] to the file's options, and [dataset] vocabulary to the one it was trained with."
        )
    save_model(build.directory / "model.safetensors", weights, description)
    device = engine.torch_device()
    similarity = similarity_matrix(load_model(path).to(device), dev, device)
    ranks = retrieval_ranks(similarity, dev.split.image_of, dev.split.identity)
    write_ranks(build.directory / DEV_RANKS, ranks)
    build.notes["metrics"] = summarise(ranks)


def train_rank(
    chain: Chain, stage: str, directory: Path | None, processes: Processes, engine: Engine
) -> tuple[dict[str, Any], dict[str, str]]:
    """Train in a work directory that is locked already, or follow in a temporary folder; return notes and inputs."""
    with TemporaryDirectory() as folder:
        leads = processes.leads and directory is not None
        build = Build(directory if directory is not None and leads else Path(folder))
        with build.collecting():
            notes = train(chain, stage, build, engine if leads else replace(engine, tensorboard=False), processes)
        return notes, build.inputs
