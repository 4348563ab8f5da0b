"""Open splits as an experiment's model reads them: tokenised captions, region features or photographs."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from aoq.models import MODELS
from aoq.models.towers.image_towers import open_image_tower
from aoq.pipeline.data.batches import PairData, Pixels
from aoq.pipeline.data.files import open_features
from aoq.pipeline.data.folder import Split, split_paths
from aoq.pipeline.data.tokens import TokenisedCaptions
from aoq.pipeline.inputs import Verify, take_in_planned
from aoq.pipeline.prepare.photographs import photographs_fingerprint
from aoq.pipeline.prepare.pieces import read_words, tokenised
from aoq.pipeline.prepare.pixels import open_pixels
from aoq.pipeline.stages.chain import Chain
from aoq.pipeline.stages.data import PIECES, VOCABULARY
from aoq.pipeline.stages.splits import open_checked, open_train_split


def open_pairs(chain: Chain, role: str, verify: Verify = "sampled") -> PairData:
    """Open the train or dev split with the captions that the dataset stage tokenised.

    Raises:
        ValueError: if the split lacks what the model needs.
    """
    config = chain.experiment.dataset
    split = open_train_split(chain, verify) if role == "train" else open_checked(chain, config.dev, verify)
    tokens = TokenisedCaptions.load(chain["dataset"].opened() / f"{role}_tokens.npz")
    pairs = PairData(split, tokens, config.max_regions, _pixels(chain, split))
    _check_regions(chain.experiment.model.name, pairs)
    return pairs


def open_named_pairs(chain: Chain, name: str) -> PairData:
    """Open any split of the folder, tokenised with the chain's own vocabulary."""
    return as_pairs(chain, open_checked(chain, name))


def as_pairs(chain: Chain, split: Split) -> PairData:
    """Return the split as the chain's models read it."""
    config = chain.experiment.dataset
    words = read_words(chain["dataset"].opened() / (VOCABULARY if config.tokeniser is None else PIECES))
    return PairData(split, tokenised(split.captions, words), config.max_regions, _pixels(chain, split))


def model_options(chain: Chain) -> dict[str, Any]:
    """Return the options of the experiment's model: its section, and the sizes that follow from the data."""
    dataset, section = chain["dataset"].manifest(), chain.experiment.model
    sizes = {name: dataset[name] for name in ("feature_size", "vocabulary_size")}
    if not MODELS[section.name].takes_masks:
        regions = open_features(split_paths(chain.folder, chain.experiment.dataset.train)["ims.npy"]).shape[1]
        sizes["regions"] = min(regions, chain.experiment.dataset.max_regions or regions)
    return {**section.model_dump(exclude={"name"}), **sizes}


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
        current, subject = partial(photographs_fingerprint, chain.folder, split.name), f"a photograph of {split.name!r}"
        take_in_planned(f"photographs of {split.name}", expected, current, f"{chain.folder}: {subject}")
    images = open_features(split_paths(chain.folder, split.name)["ims.npy"]).shape[0]
    with torch.device("meta"):  # its weights are not needed
        preprocessing = open_image_tower(tower).preprocessing
    return open_pixels(chain.folder, split, preprocessing, images)


def _check_regions(name: str, pairs: PairData) -> None:
    model, split = MODELS[name], pairs.split
    if pairs.pixels is not None:
        return
    if model.needs_boxes and split.boxes is None:
        raise ValueError(
            f"{model.__name__} needs the boxes of regions, and split {split.name!r} has no {split.name}_boxes.npy; "
            "write one (images, regions, 4): x1, y1, x2, y2 in [0, 1]; or choose a model without positions."
        )
    if not model.takes_masks and split.mask is not None and not split.mask[:, : pairs.max_regions].all():
        raise ValueError(
            f"{model.__name__} normalises each region slot over the batch and takes no masked regions, but "
            f"{split.name}_mask.npy masks some; set [dataset] max_regions to what every image has, or choose another "
            "model."
        )
