"""The world and the dataset: what everything else reads."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from jaxtyping import Int32, Int64

from aoq.pipeline.artifact import Build, digest, file_sha256
from aoq.pipeline.config.dataset import Noise
from aoq.pipeline.data.check import check_folder
from aoq.pipeline.data.demo import write_demo_world
from aoq.pipeline.data.folder import Split, open_split, present_files, split_fingerprint
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
    train, dev = open_true_train_split(chain), open_split(folder, config.dev)
    vocabulary = _vocabulary(chain, {config.train: train, config.dev: dev})
    vocabulary.save(build.directory / "vocabulary.json")
    for role, split in (("train", train), ("dev", dev)):
        TokenisedCaptions.build(split.captions, vocabulary).save(build.directory / f"{role}_tokens.npz")
    fingerprint = split_fingerprint(folder, config.train)
    if config.train_images is not None:
        fingerprint = digest([fingerprint, config.train_images])
    if config.noise is not None and config.noise.moves_pairs:
        pairing = _pairing(chain, config.noise, train.image_of)
        np.save(build.directory / NOISE, pairing)
        fingerprint = digest([fingerprint, file_sha256(build.directory / NOISE)])
        build.notes["wrong_pairs"] = int((pairing != train.image_of).sum())
    build.notes |= {
        "fingerprint": {"train": fingerprint, "dev": split_fingerprint(folder, config.dev)},
        "folder_sha256": {p.name: file_sha256(p) for name in used for p in present_files(folder, name).values()},
        "counts": {
            role: {"images": split.image_count, "captions": split.caption_count}
            for role, split in (("train", train), ("dev", dev))
        },
        "vocabulary_size": len(vocabulary),
        "feature_size": int(train.features.shape[2]),
    }


def _vocabulary(chain: Chain, known: Mapping[str, Split]) -> Vocabulary:
    """The file that is named, or the words of the splits that are; `known` ones are open."""
    config = chain.experiment.dataset
    if config.vocabulary is not None:
        return Vocabulary.load(chain.data_root / config.vocabulary)
    chosen = [known.get(name) or open_split(chain.folder, name) for name in config.vocabulary_splits]
    return Vocabulary.build([caption for split in chosen for caption in split.captions], min_count=config.min_count)


def _pairing(chain: Chain, noise: Noise, image_of: Int32[np.ndarray, " captions"]) -> Int64[np.ndarray, " captions"]:
    """The pairs that training sees; training data of other pairs have another fingerprint."""
    return draw_noise(image_of, noise) if noise.file is None else read_noise(chain.data_root / noise.file, image_of)
