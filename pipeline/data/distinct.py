"""Captions that no model can learn from: those with the token ids of another text, and those without shared words."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from aoq.pipeline.data.flaws import Flaw
from aoq.pipeline.data.tokens import TokenisedCaptions

ALIKE = 0.05
"""Fraction of captions with the token ids of another text from which a warning says so."""
FEWEST = 0.05
"""Fraction of the texts that must stay different; below it there is nothing to learn."""
FREQUENT = 0.5
"""Fraction of captions that a token stands in from which it tells nothing: full stops, `<start>`, `<end>`."""
ALONE = 0.5
"""Fraction of captions without a shared word from which a warning says so."""
REMEDY = (
    "Cut captions that are written without spaces into words, lower `dataset.min_count`, or choose a "
    "`dataset.vocabulary` or `dataset.tokeniser` that has their words."
)


def confusion(file: str, captions: Sequence[str], encoded: Sequence[Hashable]) -> Flaw | None:
    """Say how many captions have the token ids of another text; an error if hardly any text keeps its own.

    Texts that differ in case or white space only are one.
    """
    texts_of: dict[Hashable, set[str]] = {}
    for caption, ids in zip(captions, encoded, strict=True):
        texts_of.setdefault(ids, set()).add("".join(caption.lower().split()))
    texts, sequences = len(set().union(*texts_of.values())), len(texts_of)
    alike = [line for line, ids in enumerate(encoded, start=1) if len(texts_of[ids]) > 1]
    if texts > 1 and (sequences == 1 or sequences < FEWEST * texts):
        became = "one token sequence" if sequences == 1 else f"{sequences:,} token sequences"
        return Flaw(file, f"{texts:,} different texts become {became}, so no model can tell them apart. {REMEDY}")
    if alike and len(alike) >= ALIKE * len(captions):
        first = f"the first in line {alike[0]}: {captions[alike[0] - 1]!r}"
        said = f"{len(alike):,} of {len(captions):,} captions have the token ids of another text ({first}). {REMEDY}"
        return Flaw(file, said, "warning")
    return None


def isolation(file: str, captions: Sequence[str], tokens: TokenisedCaptions) -> Flaw | None:
    """Say how many captions have words of their own and share none: learning one says nothing of the others."""
    caption_of = np.repeat(np.arange(len(captions)), np.diff(tokens.offsets))
    size = int(tokens.words.max(initial=0)) + 1
    stands_in, token = np.divmod(np.unique(caption_of * size + tokens.words), size)
    occurs = np.bincount(token)
    is_shared = (occurs > 1) & (occurs < FREQUENT * len(captions))
    alone = np.setdiff1d(stands_in[occurs[token] == 1], stands_in[is_shared[token]])
    if len(captions) > 1 and len(alone) > ALONE * len(captions):
        first = f"the first in line {alone[0] + 1}: {captions[alone[0]]!r}"
        said = f"{len(alone):,} of {len(captions):,} captions share no word with another ({first})"
        return Flaw(file, f"{said}. Cut captions that are written without spaces into words.", "warning")
    return None
