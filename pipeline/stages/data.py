"""The data of an experiment: a generated world or a prepared folder, if any, and the dataset stage."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from aoq.pipeline.build import UNITS, Build, planned_file, take_in_planned
from aoq.pipeline.console import show_progress
from aoq.pipeline.data.check import examine_folder
from aoq.pipeline.data.demo import write_demo_world
from aoq.pipeline.data.findings import SEVERITIES, Flaw, confusion, summed_up
from aoq.pipeline.data.folder import Split, changed_files, split_fingerprint
from aoq.pipeline.data.noise import draw_noise, read_noise
from aoq.pipeline.data.vocabulary import Vocabulary
from aoq.pipeline.engine import Engine
from aoq.pipeline.files import digest, known_sha256
from aoq.pipeline.prepare.photographs import photographs_fingerprint, write_demo_pictures
from aoq.pipeline.stages.chain import Chain, pretrained
from aoq.pipeline.stages.splits import NOISE, SUBWORDS, VOCABULARY, open_checked, open_true_train_split, take_in_split

if TYPE_CHECKING:
    from aoq.pipeline.prepare.pieces import Pieces

logger = logging.getLogger(__name__)

MOST_PROBLEMS = 5


def plan_data(chain: Chain) -> None:
    data = chain.experiment.dataset
    if data.demo is not None:
        first = data.demo.model_dump(include={"images", "dev_images", "seed"})
        chain.add("world", first | data.demo.model_dump(exclude_defaults=True))  # other options came later
    elif data.source is not None:
        from aoq.pipeline.prepare.listing import below, source_fingerprint  # late: most experiments have none

        ignored = {"path", "images", "skip_broken", *(() if data.source.pack else ("pack",))}
        content = source_fingerprint(below(data.source, chain.data_root))
        weights = pretrained(data.source.extractor)  # those of a hub are known by their name
        recipe = data.source.model_dump(mode="json", exclude=ignored) | {"content": content}
        chain.add("prepared", recipe | ({"weights": weights["files"]} if "files" in weights else {}))
    splits = {"train": data.train, "dev": data.dev}
    if data.folder is not None:
        splits = {role: split_fingerprint(chain.folder, name) for role, name in splits.items()}
    ingredients: dict[str, Any] = {"splits": splits, "vocabulary": _plan_words(chain)}
    if data.train_images is not None:
        ingredients["train_images"] = data.train_images
    if data.noise is not None and data.noise.moves_pairs:
        file, drawn = data.noise.file, data.noise.model_dump(include={"level", "ratio", "seed"}) | {"version": 2}
        sha256 = None if file is None else chain.sha256("[dataset.noise] file", file)
        ingredients["noise"] = drawn if sha256 is None else {"sha256": sha256}
    if data.folder is not None and chain.image_tower is not None:
        read = {name: photographs_fingerprint(chain.folder, name) for name in (data.train, data.dev)}
        ingredients["photographs"] = read
    chain.add("dataset", ingredients, *chain.stages.values())


def _plan_words(chain: Chain) -> dict[str, Any]:
    """Return what the tokenised captions depend on: a tokeniser, a file, or the words of both splits."""
    data = chain.experiment.dataset
    if data.tokeniser is not None:
        return pretrained(data.tokeniser)
    if data.vocabulary is not None:
        return {"sha256": chain.sha256("[dataset] vocabulary", data.vocabulary)}
    return {"splits": [data.train, data.dev], "min_count": data.min_count}


def make_world(chain: Chain, build: Build, engine: Engine) -> None:
    demo = chain.experiment.dataset.demo
    assert demo is not None  # only experiments on the demo have this stage
    build.clear()
    write_demo_world(build.directory, **demo.model_dump(exclude={"pictures"}))
    if demo.pictures:
        write_demo_pictures(build.directory)


def make_prepared(chain: Chain, build: Build, engine: Engine) -> None:
    """Prepare a dataset folder from photographs and captions; a killed run continues after its last block of images."""
    from aoq.pipeline.prepare.listing import below, source_fingerprint
    from aoq.pipeline.prepare.prepare import prepare_folder

    section = chain.experiment.dataset.source
    assert section is not None  # only experiments on a source have this stage
    source = below(section, chain.data_root)
    content = str(chain["prepared"].ingredients["content"])
    take_in_planned("source", content, partial(source_fingerprint, source), source.path)
    with show_progress("preparing") as report:
        _, counts = prepare_folder(source, build.directory, build.directory / UNITS, engine, report=report)
    build.notes["counts"] = counts


def make_dataset(chain: Chain, build: Build, engine: Engine) -> None:
    """Write the vocabulary and the tokenised captions of train and dev, from a folder that passed its check."""
    from aoq.pipeline.prepare.pieces import Pieces, tokenised

    build.clear()
    config, folder = chain.experiment.dataset, chain.folder
    names = sorted({config.train, config.dev})
    folder_sha256 = {file: sha256 for name in names for file, sha256 in take_in_split(chain, name).items()}
    _refuse_flaws(folder, names)
    train, dev = open_true_train_split(chain), open_checked(chain, config.dev)
    check_feature_size(chain, dev, train.features.shape[2])
    vocabulary, splits = _open_vocabulary(chain, train, dev), {"train": train, "dev": dev}
    vocabulary.save(build.directory / (SUBWORDS if isinstance(vocabulary, Pieces) else VOCABULARY))
    for role, split in splits.items():
        tokens = tokenised(split.captions, vocabulary)
        captions = str(folder / f"{split.name}_caps.txt")
        if (flaw := confusion(captions, split.captions, tokens.sequences())) is not None:
            if flaw.severity == "error":
                raise ValueError(f"{flaw.file}: {flaw.message}")
            logger.warning("%s: %s", flaw.file, flaw.message)
        tokens.save(build.directory / f"{role}_tokens.npz")
    trained_on = split_fingerprint(folder, config.train)
    if config.train_images is not None:
        trained_on = digest([trained_on, config.train_images])
    if config.noise is not None and config.noise.moves_pairs:
        true, noise, file = train.image_of, config.noise, config.noise.file
        pairing = draw_noise(true, noise) if file is None else read_noise(_planned_file(chain, file, "noise"), true)
        np.save(build.directory / NOISE, pairing)
        trained_on = digest([trained_on, known_sha256(build.directory / NOISE)])
        build.notes["wrong_pairs"] = int((pairing != true).sum())
    build.notes |= {
        "fingerprint": {"train": trained_on, "dev": split_fingerprint(folder, config.dev)},
        "folder_sha256": folder_sha256,
        "counts": {role: {"images": one.image_count, "captions": one.caption_count} for role, one in splits.items()},
        "vocabulary_size": len(vocabulary),
        "feature_size": int(train.features.shape[2]),
    }


def _refuse_flaws(folder: Path, splits: Sequence[str]) -> None:
    """Refuse splits with an error, and log a line for each kind of warning."""
    changed = [[Flaw(*each)] for each in changed_files(folder, splits)]
    kinds = [*changed, *examine_folder(folder, splits).kinds]
    errors, warnings = ([summed_up(kind) for kind in kinds if kind[0].severity == level] for level in SEVERITIES)
    if errors:
        shown = "\n".join(f"  {line}" for line in errors[:MOST_PROBLEMS])
        check = f"aoq data check {'--full ' * bool(changed)}{folder}"
        raise ValueError(f"{folder} cannot be used; `{check}` lists every problem:\n{shown}")
    for line in [*warnings, *([f"`aoq data check {folder}` lists all warnings"] if warnings else [])]:
        logger.warning("%s", line)


def check_feature_size(chain: Chain, split: Split, expected: int) -> None:
    """Refuse a split whose regions have other features than those trained on."""
    if (size := split.features.shape[2]) != expected:
        both = f"regions of split {split.name!r} have {size} features, and those of {chain.experiment.dataset.train!r}"
        raise ValueError(f"{chain.folder}: {both} {expected}; extract both with the same extractor.")


def _open_vocabulary(chain: Chain, train: Split, dev: Split) -> Vocabulary | Pieces:
    config = chain.experiment.dataset
    if config.tokeniser is not None:
        from aoq.pipeline.prepare.pieces import Pieces

        check_pretrained(chain)
        return Pieces.open(config.tokeniser)
    if config.vocabulary is not None:
        return Vocabulary.load(_planned_file(chain, config.vocabulary, "vocabulary"))
    try:
        return Vocabulary.build([*train.captions, *dev.captions], min_count=config.min_count)
    except ValueError as error:
        raise ValueError(f"{chain.folder}, captions of {config.train} and {config.dev}: {error}") from error


def check_pretrained(chain: Chain) -> None:
    """Raise if the tokeniser, also the text tower's, or the image tower changed since keys were made."""
    planned = [(chain.experiment.dataset.tokeniser, chain["dataset"].ingredients["vocabulary"])]
    models = [artifact.ingredients.get("model", {}) for artifact in chain.stages.values()]
    planned += [(chain.image_tower, model["image_tower"]) for model in models if "image_tower" in model][:1]
    for name, expected in planned:
        if name is not None and pretrained(name) != expected:
            raise ValueError(f"{name} was changed after the run was planned; run again.")


def _planned_file(chain: Chain, file: str, ingredient: str) -> Path:
    return planned_file(chain.data_root, file, chain["dataset"].ingredients[ingredient]["sha256"])
