"""Open the splits of a chain's data folder, as the dataset stage read them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from aoq.pipeline.data.files import read_pairs
from aoq.pipeline.data.folder import LARGE, Split, first_images, open_split, present_files, split_fingerprint
from aoq.pipeline.digests import known_sha256
from aoq.pipeline.inputs import SAMPLED, Verify, take_in, take_in_planned
from aoq.pipeline.stages.chain import Chain

NOISE = "noise.npy"
"""The dataset stage's file with the image of every training caption, in the format of NCR's noise files."""
WHOLE = 1 << 30
"""Arrays up to this many bytes are hashed whole; larger ones by the fingerprint's blocks, unless requested."""


def open_checked(chain: Chain, name: str, verify: Verify = "sampled") -> Split:
    """Open a split of the chain's folder.

    Raises:
        ValueError: for a file that differs from the one that the dataset stage read.
    """
    made = next((chain[stage] for stage in ("world", "prepared") if stage in chain.stages), None)
    if made is None:
        _check(chain, name, verify)
    else:
        made.opened()
    return open_split(chain.folder, name)


def open_true_train_split(chain: Chain, verify: Verify = "sampled") -> Split:
    """Open the images of the training split that the experiment trains on, with their true captions."""
    dataset = chain.experiment.dataset
    split = open_checked(chain, dataset.train, verify)
    return split if dataset.train_images is None else first_images(split, dataset.train_images)


def open_train_split(chain: Chain, verify: Verify = "sampled") -> Split:
    """Open the training split as training sees it: with the pairing of [dataset.noise], if any."""
    split, noise = open_true_train_split(chain, verify), chain["dataset"].opened() / NOISE
    return replace(split, image_of=read_pairs(noise, split.caption_count)) if noise.is_file() else split


def fingerprint(chain: Chain) -> str:
    """Return the fingerprint of the training split, which tables are made of."""
    return str(chain["dataset"].manifest()["fingerprint"]["train"])


def take_in_files(chain: Chain, name: str) -> dict[str, str]:
    """Hash every file of a split, whole, on its first reading."""
    paths = present_files(chain.folder, name).values()
    for path in paths:
        take_in(_named(chain, path.name), partial(known_sha256, path))
    return {path.name: known_sha256(path) for path in paths}


def _check(chain: Chain, name: str, verify: Verify) -> None:
    dataset = chain["dataset"]
    recorded = dataset.manifest().get("folder_sha256", {}) if dataset.exists() else {}
    remedy = (
        "is not the file that was read when the dataset was made; put that one back, or, if the change is meant, "
        f"delete {dataset.path} and what was made from it, and run again."
    )
    for suffix, path in present_files(chain.folder, name).items():
        if (sha256 := recorded.get(path.name)) is None:
            continue
        if verify == "full" or suffix not in LARGE or path.stat().st_size <= WHOLE:
            take_in_planned(_named(chain, path.name), sha256, partial(known_sha256, path), path, remedy)
        else:
            take_in(_named(chain, path.name), partial(str, SAMPLED + sha256))
    if (expected := _fingerprints(chain).get(name)) is not None:
        current = partial(split_fingerprint, chain.folder, name)
        take_in_planned(_named(chain, name), expected, current, f"{chain.folder}: split {name!r}")


def _named(chain: Chain, file: str) -> str:
    """Name a file uniquely: two folders of one data root may have files of one name."""
    dataset = chain.experiment.dataset
    return f"data/{dataset.folder or ('prepared' if dataset.source else 'demo')}/{file}"


def _fingerprints(chain: Chain) -> dict[str, str]:
    """Return the fingerprints of splits that are in keys."""
    dataset, evaluation, known = chain.experiment.dataset, chain.stages.get("evaluation"), {}
    if evaluation is not None and evaluation.ingredients.get("content"):
        known[chain.experiment.evaluation.split] = evaluation.ingredients["content"]
    splits = chain["dataset"].ingredients["splits"]
    return {**known, dataset.dev: splits["dev"], dataset.train: splits["train"]}
