"""Whether a caption says what one of an image's own captions says."""

from __future__ import annotations

from typing import Any, no_type_check

import numpy as np
from jaxtyping import Bool, Float64
from numba import njit

from aoq.pipeline.data.vocabulary import tokenise
from aoq.pipeline.search.threads import in_parallel
from aoq.pipeline.tables.pairs import is_among
from aoq.pipeline.tables.screens.entries import Entries, Knowledge


class Texts:
    """All captions as numbers: of the whole text, and of the words in it."""

    def __init__(self, knowledge: Knowledge) -> None:
        assert knowledge.texts is not None
        self._own = knowledge.captions_of
        words: dict[str, int] = {}
        whole: dict[tuple[str, ...], int] = {}
        self._text = np.empty(len(knowledge.texts), dtype=np.int64)
        sets = []
        for row, text in enumerate(knowledge.texts):
            tokens = tuple(tokenise(text))
            self._text[row] = whole.setdefault(tokens, len(whole))
            sets.append(np.array(sorted({words.setdefault(token, len(words)) for token in tokens}), dtype=np.int32))
        self._words = np.concatenate(sets)
        self._offsets = np.concatenate([[0], np.cumsum([len(one) for one in sets])]).astype(np.int64)
        images = np.repeat(np.arange(knowledge.image_count), np.diff(self._own.offsets))
        self._said = np.unique(images * len(whole) + self._text[self._own.ids])
        self._count = len(whole)

    def same(self, entries: Entries) -> Bool[np.ndarray, " entries"]:
        """The same words in the same order, whatever the case."""
        return is_among(entries.images * self._count + self._text[entries.captions], self._said)

    def likeness(self, entries: Entries) -> Float64[np.ndarray, " entries"]:
        """The largest Jaccard index of the caption's words and those of one of the image's own; 0 if it has none."""
        found = np.zeros(len(entries.anchors))
        images, captions = entries.images, entries.captions
        own = self._own
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
