"""The world and the dataset: what everything else reads."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int32

from aoq.pipeline.artifact import Build, digest, file_sha256
from aoq.pipeline.config.dataset import Noise
from aoq.pipeline.data.check import check_folder
from aoq.pipeline.data.demo import write_demo_world
from aoq.pipeline.data.folder import open_split, present_files, split_fingerprint
from aoq.pipeline.data.noise import draw_noise, read_noise
from aoq.pipeline.data.tokens import TokenisedCaptions
from aoq.pipeline.data.vocabulary import Vocabulary
from aoq.pipeline.engine import Engine
from aoq.pipeline.planning.chain import Chain
from aoq.pipeline.produce.inputs import NOISE, open_true_train_split

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
    splits = {"train": open_true_train_split(chain), "dev": open_split(folder, config.dev)}
    if config.vocabulary is not None:
        vocabulary = Vocabulary.load(chain.data_root / config.vocabulary)
    else:
        known = {name: splits[role].captions for role, name in roles.items()}
        chosen = [known.get(name) or open_split(folder, name).captions for name in config.vocabulary_splits]
        vocabulary = Vocabulary.build(
            [caption for captions in chosen for caption in captions], min_count=config.min_count
        )
    vocabulary.save(build.directory / "vocabulary.json")
    for role, split in splits.items():
        TokenisedCaptions.build(split.captions, vocabulary).save(build.directory / f"{role}_tokens.npz")
    fingerprint = {role: split_fingerprint(folder, name) for role, name in roles.items()}
    if config.train_images is not None:
        fingerprint["train"] = digest([fingerprint["train"], config.train_images])
    build.notes["fingerprint"] = fingerprint
    if config.noise is not None and config.noise.moves_pairs:
        _add_noise(chain, config.noise, splits["train"].image_of, build)
    build.notes["folder_sha256"] = {
        path.name: file_sha256(path) for name in used for path in present_files(folder, name).values()
    }
    build.notes["counts"] = {
        role: {"images": split.image_count, "captions": split.caption_count} for role, split in splits.items()
    }
    build.notes["vocabulary_size"] = len(vocabulary)
    build.notes["feature_size"] = int(splits["train"].features.shape[2])


def _add_noise(chain: Chain, noise: Noise, image_of: Int32[np.ndarray, " captions"], build: Build) -> None:
    """Write the pairing that training sees; training data of another pairing have another fingerprint."""
    drawn = noise.file is None
    pairing = draw_noise(image_of, noise) if drawn else read_noise(chain.data_root / str(noise.file), image_of)
    np.save(build.directory / NOISE, pairing)
    fingerprint = build.notes["fingerprint"]
    fingerprint["train"] = digest([fingerprint["train"], file_sha256(build.directory / NOISE)])
    build.notes["wrong_pairs"] = int((pairing != image_of).sum())
