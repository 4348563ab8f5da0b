"""What would stop or mislead an experiment that reads a dataset folder with the default options of [dataset]."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from aoq.pipeline.data import files
from aoq.pipeline.data.distinct import confusion
from aoq.pipeline.data.flaws import Flaw
from aoq.pipeline.data.folder import find_splits
from aoq.pipeline.data.vocabulary import Vocabulary, tokenise

USES = {"train": "train on", "dev": "choose their best epoch by"}


def check_defaults(folder: Path) -> Iterator[Flaw]:
    """Find a missing train or dev, and texts that the default vocabulary cannot tell apart.

    Errors are of such an experiment: another may use the folder. Captions that cannot be read are left to the check of
    the files.
    """
    splits = find_splits(folder)
    for name, use in USES.items():
        if splits and name not in splits:
            said = f"is missing, which experiments {use}; add this split, or name another in `dataset.{name}`"
            yield Flaw(f"{name}_ims.npy", said)
    try:
        captions = {name: files.read_lines(folder / f"{name}_caps.txt") for name in USES if name in splits}
    except (OSError, ValueError):
        return
    if captions:
        yield from _check_words(captions)


def _check_words(captions: dict[str, list[str]]) -> Iterator[Flaw]:
    try:
        vocabulary = Vocabulary.build(text for texts in captions.values() for text in texts)
    except ValueError as error:
        yield Flaw(f"{next(iter(captions))}_caps.txt", str(error))
        return
    for name, texts in captions.items():
        flaw = confusion(f"{name}_caps.txt", texts, [tuple(vocabulary.encode(tokenise(text))) for text in texts])
        if flaw is not None:
            yield replace(flaw, message=f"with the default vocabulary, {flaw.message}")
