"""Open splits of a chain's data folder: as the dataset stage read them, and as an experiment's model reads them."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from aoq.models import MODELS
from aoq.pipeline.build import SAMPLED, take_in, take_in_planned
from aoq.pipeline.data import folder
from aoq.pipeline.data.files import open_features, read_pairing
from aoq.pipeline.data.folder import Split
from aoq.pipeline.engine import Verify
from aoq.pipeline.evaluation.retrieval import Ranks, Similarity, folded_ranks, open_similarity
from aoq.pipeline.files import known_sha256
from aoq.pipeline.prepare.photographs import photographs_fingerprint
from aoq.pipeline.stages.chain import Chain

if TYPE_CHECKING:
    from aoq.pipeline.data.batches import PairData
    from aoq.pipeline.data.pixels import PhotographPixels

logger = logging.getLogger(__name__)

NOISE = "noise.npy"
"""The dataset stage's file with the image of every training caption, in the format of NCR's noise files."""
VOCABULARY, SUBWORDS = "vocabulary.json", "tokeniser"
"""The dataset stage's vocabulary file, or its folder of a tokeniser."""
HASHED_WHOLE = 1 << 30
"""Arrays up to this many bytes are hashed whole; larger ones by the fingerprint's blocks, unless requested."""


def open_checked(chain: Chain, name: str, verify: Verify = "sampled") -> Split:
    """Open a split of the chain's folder; refuse files that differ from those that the dataset stage read."""
    if chain.data_artifact is None:
        _check_unchanged(chain, name, verify)
    else:
        chain.data_artifact.opened()
    return folder.open_split(chain.folder, name)


def open_true_train_split(chain: Chain, verify: Verify = "sampled") -> Split:
    """Open the images of the training split that the experiment trains on, with their true captions."""
    dataset = chain.experiment.dataset
    split = open_checked(chain, dataset.train, verify)
    return split if dataset.train_images is None else folder.first_images(split, dataset.train_images)


def open_train_split(chain: Chain, verify: Verify = "sampled") -> Split:
    """Open the training split as training sees it: with the pairing of [dataset.noise], if any."""
    split, noise = open_true_train_split(chain, verify), chain["dataset"].opened() / NOISE
    return replace(split, image_of=read_pairing(noise, split.caption_count)) if noise.is_file() else split


def open_evaluated(chain: Chain) -> tuple[Split, Similarity]:
    """Open the evaluation's split and its similarities, which stay on disk."""
    split = open_checked(chain, chain.experiment.evaluation.split)
    path = chain["evaluation"].opened() / "similarity.npy"
    return split, open_similarity(path, split.image_count, split.caption_count)


def evaluated_ranks(chain: Chain) -> Ranks:
    """Rank the evaluation's candidates, in its folds."""
    split, similarity = open_evaluated(chain)
    return folded_ranks(similarity, split.image_of, split.identity, folds=chain.experiment.evaluation.folds)


def fingerprint(chain: Chain) -> str:
    """Return the fingerprint of the training split, as tables record it."""
    return str(chain["dataset"].manifest()["fingerprint"]["train"])


def take_in_split(chain: Chain, name: str) -> dict[str, str]:
    """Hash every file of a split, whole, on its first reading."""
    paths = folder.present_files(chain.folder, name).values()
    for path in paths:
        take_in(_named(chain, path.name), partial(known_sha256, path))
    return {path.name: known_sha256(path) for path in paths}


def open_pairs(chain: Chain, role: str, verify: Verify = "sampled") -> PairData:
    """Open the train or dev split, tokenised by the dataset stage; refuse one that lacks what the model needs."""
    from aoq.pipeline.data.batches import PairData, TokenisedCaptions

    config = chain.experiment.dataset
    split = open_train_split(chain, verify) if role == "train" else open_checked(chain, config.dev, verify)
    tokens = TokenisedCaptions.load(chain["dataset"].opened() / f"{role}_tokens.npz")
    pairs = PairData(split, tokens, config.max_regions, _open_pixels(chain, split))
    if pairs.pixels is None:
        if config.max_regions is not None and pairs.regions > config.max_regions:
            message = "%s: all %d regions are read: they are cells of a grid, and max_regions = %d cuts boxes by score"
            logger.info(message, split.name, pairs.regions, config.max_regions)
        _check_regions(chain.experiment.model.name, pairs)
    return pairs


def open_named_pairs(chain: Chain, split: str | Split) -> PairData:
    """Open any split of the folder, tokenised with the chain's own vocabulary, as its models read it."""
    from aoq.pipeline.data.batches import PairData
    from aoq.pipeline.prepare.pieces import read_words, tokenised

    config, split = chain.experiment.dataset, open_checked(chain, split) if isinstance(split, str) else split
    words = read_words(chain["dataset"].opened() / (VOCABULARY if config.tokeniser is None else SUBWORDS))
    return PairData(split, tokenised(split.captions, words), config.max_regions, _open_pixels(chain, split))


def model_options(chain: Chain) -> dict[str, Any]:
    """Return the options of the experiment's model: its section, and the sizes that follow from the data."""
    dataset, section = chain["dataset"].manifest(), chain.experiment.model
    sizes = {name: dataset[name] for name in ("feature_size", "vocabulary_size")}
    if not MODELS[section.name].takes_masks:
        split = folder.open_split(chain.folder, chain.experiment.dataset.train)
        sizes["regions"] = split.count_regions(chain.experiment.dataset.max_regions)
    return {**section.model_dump(exclude={"name"}), **sizes}


def _open_pixels(chain: Chain, split: Split) -> PhotographPixels | None:
    """Open the photographs that the model reads, if any; refuse photographs that differ from those in the keys."""
    if chain.image_tower is None:
        return None
    import torch

    from aoq.models.towers.image_towers import open_image_tower
    from aoq.pipeline.prepare.photographs import open_pixels

    evaluated = {chain.experiment.evaluation.split: chain["evaluation"].ingredients.get("photographs")}
    planned = evaluated | chain["dataset"].ingredients.get("photographs", {})
    if expected := planned.get(split.name):
        current, subject = partial(photographs_fingerprint, chain.folder, split.name), f"a photograph of {split.name!r}"
        take_in_planned(f"photographs of {split.name}", expected, current, f"{chain.folder}: {subject}")
    images = open_features(folder.split_paths(chain.folder, split.name)["ims.npy"]).shape[0]
    with torch.device("meta"):  # its weights are not needed
        preprocessing = open_image_tower(chain.image_tower).preprocessing
    return open_pixels(chain.folder, split, preprocessing, images)


def _check_regions(name: str, pairs: PairData) -> None:
    model, split = MODELS[name], pairs.split
    if model.needs_boxes and split.boxes is None:
        lacks = f"needs the boxes of regions, but split {split.name!r} has no {split.name}_boxes.npy"
        raise ValueError(f"{model.__name__} {lacks}; write one (images, regions, 4): x1, y1, x2, y2 in [0, 1].")
    if not model.takes_masks and split.mask is not None and not split.mask[:, : pairs.regions].all():
        masks = f"normalises each region slot over the batch, and {split.name}_mask.npy masks some"
        raise ValueError(f"{model.__name__} {masks}; set [dataset] max_regions to what every image has.")


def _check_unchanged(chain: Chain, name: str, verify: Verify) -> None:
    data, dataset, files = chain.experiment.dataset, chain["dataset"], folder.present_files(chain.folder, name)
    planned, recorded = dataset.ingredients["splits"], dataset.manifest()["folder_sha256"] if dataset.exists() else {}
    meant = f"if the change is meant, delete {dataset.path} and what was made from it, and run again."
    remedy = f"has changed since the dataset stage read it; restore it, or, {meant}"
    if not any(path.name in recorded for path in files.values()):
        for file, flaw in folder.changed_files(chain.folder, [name]):
            raise ValueError(f"{chain.folder / file} {flaw}.")
    for suffix, path in files.items():
        if (sha256 := recorded.get(path.name)) is None:
            continue
        if verify == "full" or suffix not in folder.SAMPLED_FILES or path.stat().st_size <= HASHED_WHOLE:
            take_in_planned(_named(chain, path.name), sha256, partial(known_sha256, path), path, remedy)
        else:
            take_in(_named(chain, path.name), partial(str, SAMPLED + sha256))
    splits, evaluated = {data.dev: planned["dev"], data.train: planned["train"]}, chain.stages.get("evaluation")
    if evaluated is not None and evaluated.ingredients.get("content"):
        splits.setdefault(chain.experiment.evaluation.split, evaluated.ingredients["content"])
    if (expected := splits.get(name)) is not None:
        current = partial(folder.split_fingerprint, chain.folder, name)
        take_in_planned(_named(chain, name), expected, current, f"{chain.folder}: split {name!r}")


def _named(chain: Chain, file: str) -> str:
    """Name a file uniquely: two folders of one data root may have files of one name."""
    dataset = chain.experiment.dataset
    return f"data/{dataset.folder or ('prepared' if dataset.source else 'demo')}/{file}"
