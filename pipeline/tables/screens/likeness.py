"""Similarity of two captions, or of two images: by their words, and by a model's vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, no_type_check

import numpy as np
from jaxtyping import Bool, Float32, Float64, Int64
from numba import njit

from aoq.pipeline.data.vocabulary import tokenise
from aoq.pipeline.search.positives import Positives
from aoq.pipeline.search.problem import blocks
from aoq.pipeline.search.scores import exact_scores
from aoq.pipeline.tables.pairs import is_among
from aoq.pipeline.threads import in_parallel

BLOCK_NUMBERS = 2**24
"""Vector entries gathered at a time."""

Rows = Int64[np.ndarray, " entries"]


def nearest_own(
    vectors: Float32[np.ndarray, "items D"],
    norms: Float64[np.ndarray, " items"],
    rows: Rows,
    owners: Rows,
    own: Positives,
) -> Float32[np.ndarray, " entries"]:
    """Cosine of each row and the most similar of its owner's own rows; -inf if the owner has none."""
    found = np.full(len(rows), -np.inf, dtype=np.float32)
    for start, stop in blocks(len(found), max(1, BLOCK_NUMBERS // vectors.shape[1])):
        theirs = own.rows(owners[start:stop])
        scores = exact_scores(vectors[rows[start:stop]], vectors, theirs.offsets, theirs.ids) / norms[theirs.ids]
        there = np.flatnonzero(np.diff(theirs.offsets))
        if len(there):
            found[start + there] = np.maximum.reduceat(scores, theirs.offsets[there]) / norms[rows[start + there]]
    return found


class Texts:
    """All captions as numbers, of the whole text and of the words in it; `own` are the captions of each image."""

    def __init__(self, texts: Sequence[str], own: Positives) -> None:
        words: dict[str, int] = {}
        whole: dict[tuple[str, ...], int] = {}
        self._own, self._text = own, np.empty(len(texts), dtype=np.int64)
        sets = []
        for row, text in enumerate(texts):
            tokens = tuple(tokenise(text))
            self._text[row] = whole.setdefault(tokens, len(whole))
            sets.append(np.array(sorted({words.setdefault(token, len(words)) for token in tokens}), dtype=np.int32))
        self._words = np.concatenate(sets)
        self._offsets = np.concatenate([[0], np.cumsum([len(one) for one in sets])]).astype(np.int64)
        images = np.repeat(np.arange(len(own.offsets) - 1), np.diff(own.offsets))
        self._said = np.unique(images * len(whole) + self._text[own.ids])
        self._count = len(whole)

    def same(self, images: Rows, captions: Rows) -> Bool[np.ndarray, " entries"]:
        """Return whether a caption equals one of the image's own, word by word, ignoring case."""
        return is_among(images * self._count + self._text[captions], self._said)

    def likeness(self, images: Rows, captions: Rows) -> Float64[np.ndarray, " entries"]:
        """Largest Jaccard index of the caption's words and those of one of the image's own; 0 if it has none."""
        found, own = np.zeros(len(images)), self._own
        in_parallel(_likeness, len(found), images, captions, own.ids, own.offsets, self._words, self._offsets, found)
        return found


@njit(nogil=True, cache=True)
@no_type_check
def _likeness(
    start: int, stop: int, images: Any, captions: Any, own: Any, owns: Any, words: Any, offsets: Any, found: Any
) -> None:
    for entry in range(start, stop):
        first, last = offsets[captions[entry]], offsets[captions[entry] + 1]
        for place in range(owns[images[entry]], owns[images[entry] + 1]):
            here, there, end = first, offsets[own[place]], offsets[own[place] + 1]
            most = (last - first) + (end - there)
            common = 0
            while here < last and there < end:
                if words[here] == words[there]:
                    common += 1
                    here += 1
                    there += 1
                elif words[here] < words[there]:
                    here += 1
                else:
                    there += 1
            if most > 0:
                found[entry] = max(found[entry], common / (most - common))
