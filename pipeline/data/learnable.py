"""Captions that no model can learn from: token ids shared by different texts, or no words shared at all."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from aoq.pipeline.data import files
from aoq.pipeline.data.findings import Flaw
from aoq.pipeline.data.folder import find_splits
from aoq.pipeline.data.tokens import TokenisedCaptions
from aoq.pipeline.data.vocabulary import Vocabulary, tokenise

_USES = {"train": "train on", "dev": "choose their best epoch by"}
_CONFUSED = 0.05
"""Fraction of captions with the token ids of another text from which a warning says so."""
_FEWEST = 0.05
"""Fraction of the texts that must stay different; below it there is nothing to learn."""
_FREQUENT = 0.5
"""A token in at least this fraction of the captions carries no information: full stops, `<start>`, `<end>`."""
_ISOLATED = 0.5
"""Fraction of captions without a shared word from which a warning says so."""
_REMEDY = (
    "Cut captions that are written without spaces into words, lower `dataset.min_count`, or choose a "
    "`dataset.vocabulary` or `dataset.tokeniser` that has their words."
)


def check_defaults(folder: Path) -> Iterator[Flaw]:
    """Find what would stop an experiment with the default options of [dataset].

    That is a missing train or dev, or texts that the default vocabulary cannot tell apart. Another experiment may use
    the folder. Captions that cannot be read are left to the check of the files.
    """
    splits = find_splits(folder)
    for name, use in _USES.items():
        if splits and name not in splits:
            message = f"is missing, which experiments {use}; add this split, or name another in `dataset.{name}`"
            yield Flaw(f"{name}_ims.npy", message)
    try:
        captions = {name: files.read_lines(folder / f"{name}_caps.txt") for name in _USES if name in splits}
    except (OSError, ValueError):
        return
    if not captions:
        return
    try:
        vocabulary = Vocabulary.build(text for texts in captions.values() for text in texts)
    except ValueError as error:
        yield Flaw(f"{next(iter(captions))}_caps.txt", str(error))
        return
    for name, texts in captions.items():
        flaw = confusion(f"{name}_caps.txt", texts, [tuple(vocabulary.encode(tokenise(text))) for text in texts])
        if flaw is not None:
            yield replace(flaw, message=f"with the default vocabulary, {flaw.message}")


def confusion(file: str, captions: Sequence[str], encoded: Sequence[Hashable]) -> Flaw | None:
    """Count captions with the token ids of another text; an error if hardly any text keeps its own.

    Texts that differ in case or white space only are one.
    """
    texts_of: dict[Hashable, set[str]] = {}
    for caption, ids in zip(captions, encoded, strict=True):
        texts_of.setdefault(ids, set()).add("".join(caption.lower().split()))
    texts, sequences = len(set().union(*texts_of.values())), len(texts_of)
    if texts > 1 and (sequences == 1 or sequences < _FEWEST * texts):
        became = "one token sequence" if sequences == 1 else f"{sequences:,} token sequences"
        return Flaw(file, f"{texts:,} different texts become {became}, so no model can tell them apart. {_REMEDY}")
    confused = [row for row, ids in enumerate(encoded) if len(texts_of[ids]) > 1]
    if confused and len(confused) >= _CONFUSED * len(captions):
        return _warning(file, captions, confused, "have the token ids of another text", _REMEDY)
    return None


def isolation(file: str, captions: Sequence[str], tokens: TokenisedCaptions) -> Flaw | None:
    """Count captions with words of their own and none shared: learning one teaches nothing about the others."""
    caption_of = np.repeat(np.arange(len(captions)), np.diff(tokens.offsets))
    size = int(tokens.words.max(initial=0)) + 1
    caption, token = np.divmod(np.unique(caption_of * size + tokens.words), size)
    occurs = np.bincount(token)
    is_shared = (occurs > 1) & (occurs < _FREQUENT * len(captions))
    isolated = np.setdiff1d(caption[occurs[token] == 1], caption[is_shared[token]])
    if len(captions) > 1 and len(isolated) > _ISOLATED * len(captions):
        remedy = "Cut captions that are written without spaces into words."
        return _warning(file, captions, isolated.tolist(), "share no word with another", remedy)
    return None


def _warning(file: str, captions: Sequence[str], rows: Sequence[int], what: str, remedy: str) -> Flaw:
    first = f"the first in line {rows[0] + 1}: {captions[rows[0]]!r}"
    message = f"{len(rows):,} of {len(captions):,} captions {what} ({first}). {remedy}"
    return Flaw(file, message, "warning")
