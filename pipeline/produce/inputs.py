"""What several stages read: splits with their tokens, sizes, and whether they suit the model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from aoq.models import MODELS
from aoq.models.base import MatchingModel
from aoq.pipeline.data.batches import PairData
from aoq.pipeline.data.files import open_features
from aoq.pipeline.data.folder import Split, first_images, open_split, split_paths
from aoq.pipeline.data.tokens import TokenisedCaptions
from aoq.pipeline.data.vocabulary import Vocabulary
from aoq.pipeline.planning.chain import Chain

NOISE = "noise.npy"
"""The dataset stage's file with the image of every training caption, in the format of NCR's noise files."""


def open_true_train_split(chain: Chain) -> Split:
    """The images of the training split that the experiment trains on, with their true captions."""
    dataset = chain.experiment.dataset
    split = open_split(chain.folder, dataset.train)
    return split if dataset.train_images is None else first_images(split, dataset.train_images)


def open_train_split(chain: Chain) -> Split:
    """The training split as training sees it: with the pairing that [dataset.noise] made of it, if there is any."""
    split, noise = open_true_train_split(chain), chain["dataset"].path / NOISE
    return replace(split, image_of=np.load(noise).astype(np.int32)) if noise.is_file() else split


def open_pairs(chain: Chain, role: str) -> PairData:
    """The train or dev split with the captions that the dataset stage tokenised."""
    config = chain.experiment.dataset
    split = open_train_split(chain) if role == "train" else open_split(chain.folder, config.dev)
    tokens = TokenisedCaptions.load(chain["dataset"].path / f"{role}_tokens.npz")
    return PairData(split, tokens, config.max_regions)


def open_named_pairs(chain: Chain, folder: Path, name: str) -> PairData:
    """Any split of the folder, tokenised with the chain's own vocabulary."""
    split = open_split(folder, name)
    vocabulary = Vocabulary.load(chain["dataset"].path / "vocabulary.json")
    return PairData(split, TokenisedCaptions.build(split.captions, vocabulary), chain.experiment.dataset.max_regions)


def fingerprint(chain: Chain) -> str:
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
