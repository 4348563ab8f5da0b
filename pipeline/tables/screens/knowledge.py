"""Inputs of a screen's rules: listed negatives, and texts, vectors and judgements, with the similarities they give."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, no_type_check

import numpy as np
from jaxtyping import Bool, Float32, Float64, Int64

from aoq.pipeline.config.screen import ScreenSection
from aoq.pipeline.data.noise import read_clean_pairs
from aoq.pipeline.data.vocabulary import comparable_words, tokenise
from aoq.pipeline.engine import in_parallel
from aoq.pipeline.extras import compiled
from aoq.pipeline.search.lists import NegativeLists
from aoq.pipeline.search.positives import Positives, both_ways, group_offsets, with_itself
from aoq.pipeline.search.problem import Direction, blocks
from aoq.pipeline.search.scores import exact_scores
from aoq.pipeline.tables.contents import TableContents
from aoq.pipeline.tables.pairs import Pairs, is_among, pair_keys
from aoq.pipeline.tables.screens.judgements import Judgements, read_judgements, read_matches
from aoq.pipeline.vectors import checked_norms

BLOCK_ENTRIES = 2**20
BLOCK_NUMBERS = 2**24
"""Vector entries gathered at a time."""

Numbers = Int64[np.ndarray, " entries"]


@dataclass(frozen=True)
class Entries:
    """Listed negatives, list by list; `anchors` and `places` give their positions in the table."""

    direction: Direction
    anchors: Numbers
    places: Numbers
    candidates: Numbers
    images: Numbers
    captions: Numbers
    scores: Float32[np.ndarray, " entries"]
    positive_score: Float32[np.ndarray, " entries"]
    """Score of the positive with which margins compare, by default the anchor's lowest; NaN without one."""

    @property
    def below_positive(self) -> Float64[np.ndarray, " entries"]:
        """Difference from `positive_score`; NaN (within no margin) without one."""
        return self.positive_score.astype(np.float64) - self.scores


def entry_blocks(direction: Direction, lists: NegativeLists) -> Iterator[Entries]:
    """Iterate over all listed negatives, in blocks of lists."""
    for start, stop in blocks(len(lists), max(1, BLOCK_ENTRIES // max(1, lists.h))):
        part = lists[start:stop]
        rows, places = np.nonzero(part.negative_ids >= 0)
        anchors, ids = rows + start, part.negative_ids[rows, places].astype(np.int64)
        images, captions = (anchors, ids) if direction == "i2t" else (ids, anchors)
        scores, positive_score = part.scores[rows, places], part.positive_score[rows]
        yield Entries(direction, anchors, places, ids, images, captions, scores, positive_score)


@dataclass(frozen=True)
class Knowledge:
    """Inputs of rules besides the table; None if missing. A side's vectors come from one model."""

    texts: Sequence[str] | None = None
    images: Float32[np.ndarray, "images D"] | None = None
    captions: Float32[np.ndarray, "captions D"] | None = None
    matches: Pairs | None = None
    """Pairs known to match, rows (image, caption)."""
    pair_probabilities: Float32[np.ndarray, " captions"] | None = None
    """Probability that a caption and its paired image belong together."""
    judgements: Judgements | None = None
    """Judgements; pairs of one set have the lower row first."""


def read_known(table: TableContents, screen: ScreenSection, given: Mapping[str, Any], **others: Any) -> Knowledge:
    """Collect the inputs of rules; `given` are positives, pair_probabilities and judgements, which may be files."""
    positives, probabilities, judgements = map(given.get, ("positives", "pair_probabilities", "judgements"))
    images, captions = len(table.i2t), len(table.t2i)
    if isinstance(positives, Path):
        positives = read_matches(positives, images, captions)
    if isinstance(probabilities, Path):
        probabilities = read_clean_pairs(probabilities, captions)
    if judgements is not None:
        grades, one_set = screen.judged_grades, table.is_one_set
        judgements = read_judgements(judgements, images, captions, grades=grades, one_set=one_set)
    return Knowledge(matches=positives, pair_probabilities=probabilities, judgements=judgements, **others)


INPUT_OPTIONS = {
    "texts": "the captions' texts (--texts, in Python texts=)",
    "images": "the images' vectors (--image-vectors, in Python images=)",
    "captions": "the captions' vectors (--caption-vectors, in Python captions=)",
    "matches": "a file of pairs known to match",
    "judgements": "a judge's file of pairs and probabilities",
    "pair_probabilities": "the probabilities that the captions' pairs are right (--pair-probabilities)",
}
"""The way a user gives each field of Knowledge."""


class Texts:
    """All captions as numbers: one for the text, and one for each of its words; `own` are each image's captions."""

    def __init__(self, texts: Sequence[str], own: Positives) -> None:
        words: dict[str, int] = {}
        whole: dict[tuple[str, ...], int] = {}
        self._own, self._text = own, np.empty(len(texts), dtype=np.int64)
        sets = []
        for row, text in enumerate(texts):
            self._text[row] = whole.setdefault(comparable_words(text), len(whole))
            tokens = {words.setdefault(token, len(words)) for token in tokenise(text)}
            sets.append(np.array(sorted(tokens), dtype=np.int32))
        self._words = np.concatenate(sets)
        self._offsets = group_offsets(np.array([len(one) for one in sets], np.int64))
        images = np.repeat(np.arange(len(own.offsets) - 1), np.diff(own.offsets))
        self._own_texts = np.unique(images * len(whole) + self._text[own.ids])
        self._count = len(whole)

    def same(self, images: Numbers, captions: Numbers) -> Bool[np.ndarray, " entries"]:
        """Return whether a caption equals one of the image's own (`comparable_words`)."""
        return is_among(images * self._count + self._text[captions], self._own_texts)

    def jaccard(self, images: Numbers, captions: Numbers) -> Float64[np.ndarray, " entries"]:
        """Return the caption's largest Jaccard index of words with one of the image's captions; 0 if it has none."""
        highest, own = np.zeros(len(images)), self._own
        in_parallel(
            _write_jaccard, len(highest), images, captions, own.ids, own.offsets, self._words, self._offsets, highest
        )
        return highest


@compiled()
@no_type_check
def _write_jaccard(
    start: int, stop: int, images: Any, captions: Any, own: Any, owns: Any, words: Any, offsets: Any, highest: Any
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
                highest[entry] = max(highest[entry], common / (most - common))


@dataclass(frozen=True)
class Context:
    table: TableContents
    known: Knowledge
    screen: ScreenSection

    @cached_property
    def texts(self) -> Texts:
        own, rows = self.table.own("i2t"), len(self.table.i2t)
        if self.table.is_one_set and self.table.positives is not None:  # here positives are texts that match, too
            anchors, candidates = with_itself(self.table.positives, rows).T
            own = Positives.of_pairs(anchors, candidates, rows)
        return Texts(() if self.known.texts is None else self.known.texts, own)

    @cached_property
    def _norms(self) -> dict[str, Float64[np.ndarray, " items"]]:
        sides = {"images": self.known.images, "captions": self.known.captions}
        return {side: checked_norms(vectors, side) for side, vectors in sides.items() if vectors is not None}

    def nearest_own(self, side: Literal["images", "captions"], entries: Entries) -> Float32[np.ndarray, " entries"]:
        """Return each listed image's cosine to the nearest of the caption's own, or vice versa; -inf if it has none."""
        rows, owners, own = (
            (entries.images, entries.captions, self.table.own("t2i"))
            if side == "images"
            else (entries.captions, entries.images, self.table.own("i2t"))
        )
        vectors, norms = getattr(self.known, side), self._norms[side]  # `judge` made sure
        nearest = np.full(len(rows), -np.inf, dtype=np.float32)
        for start, stop in blocks(len(rows), max(1, BLOCK_NUMBERS // vectors.shape[1])):
            block, theirs = rows[start:stop], own.rows(owners[start:stop])
            scores = exact_scores(vectors[block], vectors, theirs.offsets, theirs.ids) / norms[theirs.ids]
            if len(there := np.flatnonzero(np.diff(theirs.offsets))):
                nearest[start + there] = np.maximum.reduceat(scores, theirs.offsets[there]) / norms[block[there]]
        return nearest

    @cached_property
    def matches(self) -> Int64[np.ndarray, " pairs"]:
        assert self.known.matches is not None  # `judge` made sure
        images, captions = (both_ways(self.known.matches) if self.table.is_one_set else self.known.matches).T
        return np.unique(pair_keys(images, captions, len(self.table.t2i)))

    def judged(self, entries: Entries) -> Float32[np.ndarray, " entries"]:
        """Return the judge's probability that each pair matches; NaN if the pair was not judged."""
        assert self.known.judgements is not None  # `judge` made sure
        images, captions, judged, rows = entries.images, entries.captions, self.known.judgements, len(self.table.t2i)
        if self.table.is_one_set:  # either order is the same pair
            images, captions = np.minimum(images, captions), np.maximum(images, captions)
        keys, ordered = pair_keys(images, captions, rows), pair_keys(judged.pairs[:, 0], judged.pairs[:, 1], rows)
        probabilities, is_judged = np.full(len(keys), np.nan, np.float32), is_among(keys, ordered)
        probabilities[is_judged] = judged.probabilities[np.searchsorted(ordered, keys[is_judged])]
        return probabilities
