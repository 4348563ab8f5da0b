"""One function a stage: read the upstream artefacts, call what computes, fill the work directory."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import torch

from models import MODELS, build_model
from models.base import EmbeddingModel, MatchingModel
from pipeline.artifact import Artifact, Build, file_sha256
from pipeline.config import Fusion, Rerank, Training
from pipeline.data.batches import PairData
from pipeline.data.check import check_folder
from pipeline.data.demo import write_demo_world
from pipeline.data.features import open_features
from pipeline.data.folder import Split, open_split, present_files, split_fingerprint, split_paths
from pipeline.data.tokens import TokenisedCaptions
from pipeline.data.vocabulary import Vocabulary
from pipeline.embedding import EmbeddingStore, similarity_matrix, write_embeddings
from pipeline.engine import Engine
from pipeline.evaluation.retrieval import ensemble, evaluate_similarity
from pipeline.mining.fusion import fuse_tables
from pipeline.mining.mine import mine
from pipeline.mining.problem import Problem
from pipeline.mining.rerank import rerank
from pipeline.mining.rescore import Rescoring
from pipeline.mining.runners import choose_runner
from pipeline.mining.sampler import WHOLE, GapWeights, Sampler
from pipeline.mining.screening.entries import Knowledge
from pipeline.mining.screening.matches import read_matches
from pipeline.mining.screening.view import judge, read_view, write_view
from pipeline.mining.shortlist import Shortlist
from pipeline.mining.table import NegativeTable, read_lists, read_manifest, read_table, table_hashes
from pipeline.progress import show_progress
from pipeline.stages import TABLELESS, Chain, control_training, run_name, split_member
from pipeline.training.checkpoint import load_model, read_weights, save_model
from pipeline.training.loop import Run, train

logger = logging.getLogger(__name__)

MOST_PROBLEMS = 5


def produce_world(chain: Chain, build: Build, engine: Engine) -> None:
    demo = chain.experiment.dataset.demo
    assert demo is not None  # only experiments on the demo have this stage
    build.clear()
    write_demo_world(build.directory, images=demo.images, dev_images=demo.dev_images, seed=demo.seed)


def produce_dataset(chain: Chain, build: Build, engine: Engine) -> None:
    """The vocabulary and the tokenised captions of train and dev, from a folder that passed its check."""
    build.clear()
    config, folder = chain.experiment.dataset, chain.folder
    used = sorted({config.train, config.dev, *config.vocabulary_splits})
    problems = [problem for problem in check_folder(folder, used) if problem.severity == "error"]
    if problems:
        shown = "\n".join(f"  {problem}" for problem in problems[:MOST_PROBLEMS])
        more = f"\n  and {len(problems) - MOST_PROBLEMS} more" if len(problems) > MOST_PROBLEMS else ""
        raise ValueError(f"{folder} cannot be used; `aoq data check {folder}` says all:\n{shown}{more}")
    roles = {"train": config.train, "dev": config.dev}
    splits = {role: open_split(folder, name) for role, name in roles.items()}
    if config.vocabulary is not None:
        vocabulary = Vocabulary.load(chain.data_root / config.vocabulary)
    else:
        chosen = [open_split(folder, name).captions for name in config.vocabulary_splits]
        vocabulary = Vocabulary.build(
            [caption for captions in chosen for caption in captions], min_count=config.min_count
        )
    vocabulary.save(build.directory / "vocabulary.json")
    for role, split in splits.items():
        TokenisedCaptions.build(split.captions, vocabulary).save(build.directory / f"{role}_tokens.npz")
    build.notes["fingerprint"] = {role: split_fingerprint(folder, name) for role, name in roles.items()}
    build.notes["folder_sha256"] = {
        path.name: file_sha256(path) for name in used for path in present_files(folder, name).values()
    }
    build.notes["counts"] = {
        role: {"images": split.image_count, "captions": split.caption_count} for role, split in splits.items()
    }
    build.notes["vocabulary_size"] = len(vocabulary)
    build.notes["feature_size"] = int(splits["train"].features.shape[2])


def produce_first_round(chain: Chain, build: Build, engine: Engine) -> None:
    """The teacher: trained, or imported weights that fit the data, with their dev recalls."""
    experiment = chain.experiment
    if experiment.first_round is not None:
        _train(chain, experiment.first_round, None, build, engine)
    else:
        _import(chain, str(experiment.teacher_weights), build, engine)


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


def produce_control(chain: Chain, build: Build, engine: Engine) -> None:
    _train(chain, control_training(chain.experiment.student), None, build, engine)


def produce_second_round(chain: Chain, build: Build, engine: Engine) -> None:
    """The student, trained on the table; or imported weights in its place."""
    experiment = chain.experiment
    if experiment.weights is not None:
        _import(chain, experiment.weights, build, engine)
        return
    table = None if experiment.student.loss.name in TABLELESS else chain["hard_negatives"]
    _train(chain, experiment.student, table, build, engine)


def produce_embeddings(chain: Chain, build: Build, engine: Engine) -> None:
    device = engine.torch_device()
    model = load_model(chain["first_round"].path / "model.safetensors").to(device)
    assert isinstance(model, EmbeddingModel)  # the config refuses to mine with any other
    with show_progress("embeddings") as report:
        write_embeddings(model, open_pairs(chain, "train"), build.directory, device, report)


def produce_hard_negatives(chain: Chain, build: Build, engine: Engine) -> None:
    """The table: mined from embeddings, or made of other experiments' tables."""
    if isinstance(chain.table, Rerank):
        _rerank(chain, chain.table, build, engine)
    elif isinstance(chain.table, Fusion):
        _fuse(chain, chain.table, build)
    else:
        _mine(chain, build, engine)


def _mine(chain: Chain, build: Build, engine: Engine) -> None:
    engine.torch_device()
    run = choose_runner(engine)
    mining = chain.experiment.mining
    assert mining is not None  # stages.plan gave the chain this stage
    store = EmbeddingStore.open(chain["embeddings"].path)
    split = open_split(chain.folder, chain.experiment.dataset.train)
    with show_progress("mining") as report:
        mine(
            Problem(
                store.images,
                store.captions,
                split.image_of,
                mining.h_captions,
                mining.h_images,
                memory=engine.mining_memory_mb * 1_000_000,
            ),
            search=mining.search,
            recall_floor=mining.recall_floor,
            provenance=_provenance(chain, build, _teacher(chain, "first_round")),
            work=build.directory / "shards",
            output=build.directory / "table",
            run=run,
            progress=lambda done, total: report(done, total, "shards"),
        )


def _rerank(chain: Chain, options: Rerank, build: Build, engine: Engine) -> None:
    device = engine.torch_device()
    shortlist, teacher = chain.members
    pairs = open_pairs(teacher, "train")
    model = load_model(teacher["second_round"].path / "model.safetensors")
    check_inputs(type(model), pairs)
    folder = shortlist["hard_negatives"].path / "table"
    tables = table_hashes(read_manifest(folder, dataset=_fingerprint(chain)))
    captions = read_lists(folder / "i2t.parquet").negative_ids[:, : options.depth_captions].copy()
    images = read_lists(folder / "t2i.parquet").negative_ids[:, : options.depth_images].copy()
    depths = {"captions": captions.shape[1], "images": images.shape[1]}
    about = {"experiment": options.shortlist, "depths": depths, "tables": tables}
    provenance = _provenance(chain, build, _teacher(teacher, "second_round"), shortlist=about)
    with show_progress("rescoring") as report:
        rerank(
            Rescoring(
                model.to(device),
                pairs,
                Shortlist(captions, images, pairs.split.image_of),
                options.h_captions,
                options.h_images,
                options.checked_anchors,
                device,
            ),
            provenance=provenance,
            work=build.directory / "shards",
            output=build.directory / "table",
            progress=lambda done, total: report(done, total, "units"),
        )


def _fuse(chain: Chain, options: Fusion, build: Build) -> None:
    build.clear()
    folders = [member["hard_negatives"].path / "table" for member in chain.members]
    made = [read_manifest(folder, dataset=_fingerprint(chain)) for folder in folders]
    members = [
        {"experiment": name, "teacher": about["teacher"], "tables": table_hashes(about)}
        for name, about in zip(chain.asked, made, strict=True)
    ]
    how = {"method": options.method, "weights": options.weights and list(options.weights), "members": members}
    fuse_tables(
        folders,
        [run_name(*split_member(name)) for name in chain.asked],
        method=options.method,
        weights=options.weights,
        depths={"i2t": options.h_captions, "t2i": options.h_images},
        provenance=_provenance(chain, build, {"experiment": chain.experiment.name, "fusion": how}),
        image_of=open_split(chain.folder, chain.experiment.dataset.train).image_of,
        output=build.directory / "table",
    )


def _teacher(chain: Chain, stage: str) -> dict[str, Any]:
    weights = chain[stage].manifest()["files"]["model.safetensors"]["sha256"]
    return {"experiment": chain.experiment.name, "model": chain.experiment.model.name, "weights_sha256": weights}


def _provenance(chain: Chain, build: Build, teacher: dict[str, Any], **more: Any) -> dict[str, Any]:
    dataset = _fingerprint(chain)
    return {"dataset": dataset, "teacher": teacher, **more, "tool": "aoq", "tool_version": build.tool_version}


def produce_screen(chain: Chain, build: Build, engine: Engine) -> None:
    """The table as the experiment's screen sees it."""
    engine.torch_device()
    build.clear()
    screen = chain.experiment.screen
    assert screen is not None  # stages.plan gave the chain this stage
    split = open_split(chain.folder, chain.experiment.dataset.train)
    matches = None
    if screen.positives is not None:
        matches = read_matches(chain.data_root / screen.positives, split.image_count, split.caption_count)
    store = EmbeddingStore.open(chain["embeddings"].path) if screen.needs_vectors else None
    knowledge = Knowledge(
        split.image_count,
        split.image_of,
        split.captions,
        images=None if store is None else store.images,
        captions=None if store is None else store.captions,
        matches=matches,
    )
    view = judge(read_table(chain["hard_negatives"].path / "table", dataset=_fingerprint(chain)), screen, knowledge)
    write_view(view, build.directory / "view")
    build.notes["directions"] = view.manifest["directions"]
    for direction, counts in view.manifest["directions"].items():
        taken = ", ".join(f"{rule} {count}" for rule, count in counts["takes"].items())
        logger.info("%s: %d of %d negatives left (%s)", direction, counts["left"], counts["listed"], taken)


def produce_evaluation(chain: Chain, build: Build, engine: Engine) -> None:
    """Metrics on the evaluation split, of the second round or of an ensemble's second rounds, with each member's."""
    device = engine.torch_device()
    options = chain.experiment.evaluation
    scores, metrics = [], []
    for member in chain.members or (chain,):
        model = load_model(member["second_round"].path / "model.safetensors").to(device)
        pairs = _open_pairs(member, chain.folder, options.split)
        scores.append(similarity_matrix(model, pairs, device))
        metrics.append(evaluate_similarity(scores[-1], pairs.split.image_of, folds=options.folds))
    similarity = ensemble(scores, chain.weights)
    build.notes["metrics"] = evaluate_similarity(similarity, pairs.split.image_of, folds=options.folds)
    build.notes["member_metrics"] = metrics if chain.members else []
    np.save(build.directory / "similarity.npy", similarity)


def open_pairs(chain: Chain, role: str) -> PairData:
    """The train or dev split with the captions that the dataset stage tokenised."""
    config = chain.experiment.dataset
    split = open_split(chain.folder, {"train": config.train, "dev": config.dev}[role])
    tokens = TokenisedCaptions.load(chain["dataset"].path / f"{role}_tokens.npz")
    return PairData(split, tokens, config.max_regions)


def _open_pairs(chain: Chain, folder: Path, name: str) -> PairData:
    """Any split of the folder, tokenised with the chain's own vocabulary."""
    split = open_split(folder, name)
    vocabulary = Vocabulary.load(chain["dataset"].path / "vocabulary.json")
    return PairData(split, TokenisedCaptions.build(split.captions, vocabulary), chain.experiment.dataset.max_regions)


def _fingerprint(chain: Chain) -> str:
    return str(chain["dataset"].manifest()["fingerprint"]["train"])


def model_options(chain: Chain) -> dict[str, Any]:
    """What builds the experiment's model: its section, and the sizes that follow from the data."""
    dataset, section = chain["dataset"].manifest(), chain.experiment.model
    sizes = {name: dataset[name] for name in ("feature_size", "vocabulary_size")}
    if not MODELS[section.name].takes_masks:
        regions = open_features(split_paths(chain.folder, chain.experiment.dataset.train)["ims.npy"]).shape[1]
        sizes["regions"] = min(regions, chain.experiment.dataset.max_regions or regions)
    return {**section.model_dump(exclude={"name"}), **sizes}


def check_inputs(model: type[MatchingModel], pairs: PairData) -> None:
    """Raise if the split lacks what the model needs, before anything is trained."""
    split, name = pairs.split, model.__name__
    if model.needs_boxes and split.boxes is None:
        raise ValueError(
            f"{name} needs to know where regions lie, and split {split.name!r} has no {split.name}_boxes.npy; write "
            "one (images, regions, 4): x1, y1, x2, y2 in [0, 1]; or choose a model without positions."
        )
    if not model.takes_masks and split.mask is not None and not split.mask[:, : pairs.max_regions].all():
        raise ValueError(
            f"{name} normalises each region slot over the batch and takes no masked regions, but {split.name}_mask.npy "
            "masks some; set [dataset] max_regions to what every image has, or choose another model."
        )


def _sampler(chain: Chain, table: NegativeTable, split: Split) -> Sampler:
    screen, sampling = chain.experiment.screen, chain.experiment.sampling
    weights = None
    if sampling.gap is not None and sampling.sharpness is not None:
        weights = GapWeights(sampling.gap, sampling.sharpness)
    return Sampler(
        table,
        split.image_of,
        split.captions_of,
        strategy=sampling.strategy,
        resample=sampling.resample,
        h_captions=sampling.h_captions,
        h_images=sampling.h_images,
        windows=sampling.windows or WHOLE,
        weights=weights,
        view=read_view(chain["screen"].path / "view", table.manifest) if screen else None,
        suspected=screen.suspected if screen else "drop",
    )


def _train(chain: Chain, training: Training, table: Artifact | None, build: Build, engine: Engine) -> None:
    device = engine.torch_device()
    seed = chain.experiment.seed
    torch.manual_seed(seed)  # the one place: initial weights and dropout follow from it
    train_pairs, dev_pairs = open_pairs(chain, "train"), open_pairs(chain, "dev")
    name, options = chain.experiment.model.name, model_options(chain)
    for pairs in (train_pairs, dev_pairs):
        check_inputs(MODELS[name], pairs)
    sampler = None
    if table is not None:
        sampler = _sampler(chain, read_table(table.path / "table", dataset=_fingerprint(chain)), train_pairs.split)

    def validate(model: MatchingModel) -> dict[str, float]:
        return evaluate_similarity(similarity_matrix(model, dev_pairs, device), dev_pairs.split.image_of)

    with show_progress(f"{chain.experiment.name} {training.loss.name}") as report:
        build.notes |= train(
            build_model(name, **options),
            {"name": name, "options": options},
            train_pairs,
            sampler,
            training,
            validate,
            seed=seed,
            run=Run(build.directory, device, engine.checkpoint_steps, engine.tensorboard, report),
        )
