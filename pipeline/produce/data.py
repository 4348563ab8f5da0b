"""Produce the demo world and the dataset, and open their splits, tokens and sizes for other stages."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from aoq.models import MODELS
from aoq.models.base import MatchingModel
from aoq.models.towers.image_towers import open_image_tower
from aoq.pipeline.artifact import Artifact
from aoq.pipeline.build import UNITS, Build
from aoq.pipeline.console import show_progress
from aoq.pipeline.data.batches import PairData, Pixels
from aoq.pipeline.data.check import examine_folder
from aoq.pipeline.data.demo import write_demo_world
from aoq.pipeline.data.files import open_features, read_pairs
from aoq.pipeline.data.flaws import SEVERITIES, Flaw, summed_up
from aoq.pipeline.data.folder import Split, first_images, split_fingerprint, split_paths
from aoq.pipeline.data.learnable import confusion, isolation
from aoq.pipeline.data.noise import draw_noise, read_noise
from aoq.pipeline.data.tokens import TokenisedCaptions
from aoq.pipeline.data.vocabulary import Vocabulary
from aoq.pipeline.digests import digest, known_sha256
from aoq.pipeline.engine import Engine
from aoq.pipeline.inputs import Verify, planned_file, take_in
from aoq.pipeline.planning.chain import Chain
from aoq.pipeline.planning.keys import pretrained
from aoq.pipeline.planning.opening import open_checked, take_in_files
from aoq.pipeline.prepare.demo_pictures import write_demo_pictures
from aoq.pipeline.prepare.photographs import photographs_fingerprint
from aoq.pipeline.prepare.pieces import Pieces, read_words, tokenised
from aoq.pipeline.prepare.pixels import open_pixels
from aoq.pipeline.prepare.prepare import prepare
from aoq.pipeline.prepare.request import Request, source_fingerprint

logger = logging.getLogger(__name__)

MOST_PROBLEMS = 5
VOCABULARY, PIECES = "vocabulary.json", "tokeniser"
"""The dataset stage's vocabulary file, or its folder of a tokeniser."""
NOISE = "noise.npy"
"""The dataset stage's file with the image of every training caption, in the format of NCR's noise files."""


def produce_world(chain: Chain, build: Build, engine: Engine) -> None:
    demo = chain.experiment.dataset.demo
    assert demo is not None  # only experiments on the demo have this stage
    build.clear()
    write_demo_world(build.directory, **demo.model_dump(exclude={"pictures"}))
    if demo.pictures:
        write_demo_pictures(build.directory)


def produce_prepared(chain: Chain, build: Build, engine: Engine) -> None:
    """Prepare a dataset folder from photographs and captions; a killed run continues after its last block of images."""
    section = chain.experiment.dataset.source
    assert section is not None  # only experiments on a source have this stage
    request = Request.of_section(section, chain.data_root)
    take_in("source", partial(_as_listed, request, chain["prepared"].ingredients["content"]))
    with show_progress("preparing") as report:
        made = prepare(request, build.directory, build.directory / UNITS, engine, report=report)
    build.notes |= {"counts": {name: counts._asdict() for name, counts in made.splits.items()}}


def _as_listed(request: Request, content: str) -> str:
    if source_fingerprint(request) != content:
        raise ValueError(f"{request.source} was changed after the run was planned; run again.")
    return content


def produce_dataset(chain: Chain, build: Build, engine: Engine) -> None:
    """Write the vocabulary and the tokenised captions of train and dev, from a folder that passed its check."""
    build.clear()
    config, folder = chain.experiment.dataset, chain.folder
    used = sorted({config.train, config.dev, *config.splits_of_words})
    folder_sha256 = {file: sha256 for name in used for file, sha256 in take_in_files(chain, name).items()}
    _check_files(folder, used)
    train, dev = open_true_train_split(chain), open_checked(chain, config.dev)
    check_feature_size(chain, dev, train.features.shape[2])
    vocabulary, splits = _vocabulary(chain, {config.train: train, config.dev: dev}), {"train": train, "dev": dev}
    vocabulary.save(build.directory / (PIECES if isinstance(vocabulary, Pieces) else VOCABULARY))
    for role, split in splits.items():
        tokens = tokenised(split.captions, vocabulary)
        written = str(folder / f"{split.name}_caps.txt")
        _heed(confusion(written, split.captions, tokens.sequences()))
        if role == "train":
            _heed(isolation(written, split.captions, tokens))
        tokens.save(build.directory / f"{role}_tokens.npz")
    trained_on = split_fingerprint(folder, config.train)
    if config.train_images is not None:
        trained_on = digest([trained_on, config.train_images])
    if config.noise is not None and config.noise.moves_pairs:
        true, noise, file = train.image_of, config.noise, config.noise.file
        pairing = draw_noise(true, noise) if file is None else read_noise(_planned(chain, file, "noise"), true)
        np.save(build.directory / NOISE, pairing)
        trained_on = digest([trained_on, known_sha256(build.directory / NOISE)])
        build.notes["wrong_pairs"] = int((pairing != true).sum())
    build.notes |= {
        "fingerprint": {"train": trained_on, "dev": split_fingerprint(folder, config.dev)},
        "folder_sha256": folder_sha256,
        "counts": {
            role: {"images": split.image_count, "captions": split.caption_count} for role, split in splits.items()
        },
        "vocabulary_size": len(vocabulary),
        "feature_size": int(train.features.shape[2]),
    }


def _check_files(folder: Path, splits: Sequence[str]) -> None:
    """Refuse splits with an error, and log a line for each kind of warning."""
    kinds = examine_folder(folder, splits).kinds
    errors, warnings = ([summed_up(kind) for kind in kinds if kind[0].severity == level] for level in SEVERITIES)
    if errors:
        shown = "\n".join(f"  {said}" for said in errors[:MOST_PROBLEMS])
        more = f"\n  and {len(errors) - MOST_PROBLEMS} more kinds" if len(errors) > MOST_PROBLEMS else ""
        raise ValueError(f"{folder} cannot be used; `aoq data check {folder}` says all:\n{shown}{more}")
    for said in warnings:
        logger.warning("%s", said)
    if warnings:
        logger.warning("`aoq data check %s` lists all warnings", folder)


def _heed(flaw: Flaw | None) -> None:
    """Refuse an error, and log a warning."""
    if flaw is not None and flaw.severity == "error":
        raise ValueError(f"{flaw.file}: {flaw.message}")
    if flaw is not None:
        logger.warning("%s: %s", flaw.file, flaw.message)


def check_feature_size(chain: Chain, split: Split, expected: int) -> None:
    """Refuse a split whose regions have other features than those trained on."""
    if (found := split.features.shape[2]) != expected:
        raise ValueError(
            f"{chain.folder}: regions of split {split.name!r} have {found} features, and those of "
            f"{chain.experiment.dataset.train!r} {expected}; extract both alike."
        )


def _vocabulary(chain: Chain, known: Mapping[str, Split]) -> Vocabulary | Pieces:
    """Open the named tokeniser or file, or collect the words of the named splits; `known` splits are open already."""
    config = chain.experiment.dataset
    if config.tokeniser is not None:
        check_pretrained(chain)
        return Pieces.open(config.tokeniser)
    if config.vocabulary is not None:
        return Vocabulary.load(_planned(chain, config.vocabulary, "vocabulary"))
    chosen = [known.get(name) or open_checked(chain, name) for name in config.splits_of_words]
    try:
        return Vocabulary.build([caption for split in chosen for caption in split.captions], min_count=config.min_count)
    except ValueError as error:
        raise ValueError(f"{chain.folder}, captions of {' and '.join(config.splits_of_words)}: {error}") from error


def _planned(chain: Chain, file: str, ingredient: str) -> Path:
    """Return a file that the dataset's key depends on."""
    return planned_file(chain.data_root, file, chain["dataset"].ingredients[ingredient]["sha256"])


def open_true_train_split(chain: Chain, verify: Verify = "sampled") -> Split:
    """Open the images of the training split that the experiment trains on, with their true captions."""
    dataset = chain.experiment.dataset
    split = open_checked(chain, dataset.train, verify)
    return split if dataset.train_images is None else first_images(split, dataset.train_images)


def open_train_split(chain: Chain, verify: Verify = "sampled") -> Split:
    """Open the training split as training sees it: with the pairing of [dataset.noise], if any."""
    split, noise = open_true_train_split(chain, verify), chain["dataset"].opened() / NOISE
    return replace(split, image_of=read_pairs(noise, split.caption_count)) if noise.is_file() else split


def open_pairs(chain: Chain, role: str, verify: Verify = "sampled") -> PairData:
    """Open the train or dev split with the captions that the dataset stage tokenised."""
    config = chain.experiment.dataset
    split = open_train_split(chain, verify) if role == "train" else open_checked(chain, config.dev, verify)
    tokens = TokenisedCaptions.load(chain["dataset"].opened() / f"{role}_tokens.npz")
    return PairData(split, tokens, config.max_regions, _pixels(chain, split))


def open_named_pairs(chain: Chain, name: str) -> PairData:
    """Open any split of the folder, tokenised with the chain's own vocabulary."""
    return as_pairs(chain, open_checked(chain, name))


def as_pairs(chain: Chain, split: Split) -> PairData:
    """Return the split as the chain's models read it."""
    config = chain.experiment.dataset
    words = read_words(chain["dataset"].opened() / (VOCABULARY if config.tokeniser is None else PIECES))
    return PairData(split, tokenised(split.captions, words), config.max_regions, _pixels(chain, split))


def _pixels(chain: Chain, split: Split) -> Pixels | None:
    """Open the split's photographs, if the model reads them.

    Raises:
        ValueError: for photographs other than those that keys depend on.
    """
    tower = getattr(chain.experiment.model, "image_tower", None)
    if tower is None:
        return None
    evaluated = {chain.experiment.evaluation.split: chain["evaluation"].ingredients.get("photographs")}
    planned = evaluated | chain["dataset"].ingredients.get("photographs", {})
    if expected := planned.get(split.name):
        take_in(f"photographs of {split.name}", partial(_as_photographed, chain.folder, split.name, expected))
    images = open_features(split_paths(chain.folder, split.name)["ims.npy"]).shape[0]
    with torch.device("meta"):  # its weights are not needed
        seen = open_image_tower(tower).preprocessing
    return open_pixels(chain.folder, split, seen, images)


def _as_photographed(folder: Path, split: str, expected: str) -> str:
    if photographs_fingerprint(folder, split) != expected:
        raise ValueError(f"{folder}: the photographs of {split!r} were changed after the run was planned; run again.")
    return expected


def check_pretrained(chain: Chain) -> None:
    """Raise if the tokeniser, also the text tower's, or the image tower changed since keys were made."""
    words, tower = chain.experiment.dataset.tokeniser, getattr(chain.experiment.model, "image_tower", None)
    planned = [(words, chain["dataset"].ingredients["vocabulary"])]
    planned += [(tower, stage.ingredients["model"]["image_tower"]) for stage in _trainings(chain)[:1]]
    for name, expected in planned:
        if name is not None and pretrained(name) != expected:
            raise ValueError(f"{name} was changed after the run was planned; run again.")


def _trainings(chain: Chain) -> list[Artifact]:
    """Return the artefacts whose keys depend on the model."""
    return [made for made in chain.stages.values() if "image_tower" in made.ingredients.get("model", {})]


def fingerprint(chain: Chain) -> str:
    return str(chain["dataset"].manifest()["fingerprint"]["train"])


def model_options(chain: Chain) -> dict[str, Any]:
    """Options of the experiment's model: its section, and the sizes that follow from the data."""
    dataset, section = chain["dataset"].manifest(), chain.experiment.model
    sizes = {name: dataset[name] for name in ("feature_size", "vocabulary_size")}
    if not MODELS[section.name].takes_masks:
        regions = open_features(split_paths(chain.folder, chain.experiment.dataset.train)["ims.npy"]).shape[1]
        sizes["regions"] = min(regions, chain.experiment.dataset.max_regions or regions)
    return {**section.model_dump(exclude={"name"}), **sizes}


def check_inputs(model: type[MatchingModel], pairs: PairData) -> None:
    """Raise if the split lacks what the model needs, before anything is trained."""
    split, name = pairs.split, model.__name__
    if pairs.pixels is not None:
        return
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
