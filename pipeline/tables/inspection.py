"""Inspection of one anchor's list: its texts, its positives, and their ranks among its negatives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int32, Int64

from aoq.pipeline.data.vocabulary import tokenise
from aoq.pipeline.embedding import EmbeddingStore
from aoq.pipeline.search.lists import NegativeLists
from aoq.pipeline.search.problem import Direction
from aoq.pipeline.search.scores import exact_scores
from aoq.pipeline.tables.contents import ShownRows
from aoq.pipeline.tables.files import search_facts
from aoq.pipeline.tables.screens.view import Judged, View, bit, rules_of
from aoq.pipeline.tables.table import NegativeTable

NEAR_DUPLICATE = 0.8


@dataclass(frozen=True)
class Positive:
    """An image or a caption; a caption has an id if captions have some."""

    row: int
    text: str
    score: float | None
    """None if the teacher's embeddings are gone; the table itself keeps only the lowest positive score."""
    rank: int | None
    """1 + the negatives at least as similar; None if it lies beyond the list."""
    caption_id: str = ""


@dataclass(frozen=True)
class Negative:
    """A listed image or caption, with the image's id and the caption's."""

    rank: int
    row: int
    image_id: str
    text: str
    score: float
    above_positive: bool
    """At least as similar as the anchor's lowest-scoring positive."""
    duplicate: str
    """"same text" or "near-duplicate" of a positive caption, so probably a false negative; else empty."""
    sources: list[str]
    """Members of a fused table that list it."""
    flags: tuple[str, ...]
    """Rules of the view that it meets."""
    suspicion: float
    caption_id: str = ""


@dataclass(frozen=True)
class Inspection:
    """An anchor, with the image's id and the caption's, its positives, and some of its negatives."""

    direction: Direction
    anchor: int
    image_id: str
    text: str
    h: int
    lowest_positive_score: float | None
    """None if the table has no scores of positives."""
    positives: list[Positive]
    negatives: list[Negative]
    caption_id: str = ""


@dataclass(frozen=True)
class AnchorList:
    """An anchor's list as its table has it, and, if there is a view, as the view judges it; one row of each."""

    direction: Direction
    anchor: int
    lists: NegativeLists
    judged: Judged | None
    members: Sequence[str]
    """Members of a fused table; bit m of the list's `sources` stands for member m."""
    named: Sequence[str] = ()
    """Ids of the captions, if they have some."""

    @property
    def negative_ids(self) -> Int32[np.ndarray, " h"]:
        return self.lists.negative_ids[0]

    def caption_id(self, caption: int) -> str:
        return self.named[caption] if self.named else ""


def inspect_anchor(
    table: NegativeTable,
    split: ShownRows,
    direction: Direction,
    anchor: int,
    top: int,
    store: EmbeddingStore | None,
    view: View | None = None,
    only: str = "",
    named: Sequence[str] = (),
) -> Inspection:
    """Show the first `top` negatives of an image (i2t) or a caption (t2i), judged by the view if there is one.

    `only` is a rule that they must meet, or "left": those without flags; `named` are the captions' ids.
    """
    row = slice(anchor, anchor + 1)
    judged = None if view is None else view[direction][row]
    members = search_facts(table.manifest, direction).get("sources", ())
    listed = AnchorList(direction, anchor, table[direction][row], judged, members, named)
    chosen = listed.negative_ids >= 0
    if only and judged is not None:
        chosen &= judged.flags[0] == 0 if only == "left" else judged.flags[0] & bit(only) > 0
    return inspect_list(listed, split, np.flatnonzero(chosen)[:top], store)


def inspect_list(
    listed: AnchorList, split: ShownRows, places: Int64[np.ndarray, " some"], store: EmbeddingStore | None
) -> Inspection:
    """Show the negatives at these places of the list, and the anchor's positives."""
    is_image, anchor, lists = listed.direction == "i2t", listed.anchor, listed.lists
    positives, positive_score = split.answers_of(listed.direction, anchor), float(lists.positive_score[0])
    own_words = [tokenise(split.captions[row]) for row in (positives if is_image else [anchor])]
    return Inspection(
        listed.direction,
        anchor,
        _image_id(split, anchor if is_image else int(split.image_of[anchor])),
        "" if is_image else split.captions[anchor],
        lists.h,
        None if np.isnan(positive_score) else positive_score,
        [*_positives(positives, listed, split, store)],
        [_negative(listed, split, place, own_words) for place in places.tolist()],
        "" if is_image else listed.caption_id(anchor),
    )


def _negative(listed: AnchorList, split: ShownRows, place: int, own_words: Sequence[Sequence[str]]) -> Negative:
    lists, judged, is_caption = listed.lists, listed.judged, listed.direction == "i2t"
    row, score = int(lists.negative_ids[0, place]), float(lists.scores[0, place])
    texts = [split.captions[caption] for caption in ([row] if is_caption else split.captions_of[row])]
    bits = 0 if lists.sources is None else int(lists.sources[0, place])
    return Negative(
        place + 1,
        row,
        _image_id(split, int(split.image_of[row]) if is_caption else row),
        texts[0] if texts else "",
        score,
        score >= float(lists.positive_score[0]),
        _duplicate([tokenise(text) for text in texts], own_words),
        [name for bit, name in enumerate(listed.members) if bits >> bit & 1],
        () if judged is None else rules_of(int(judged.flags[0, place])),
        0.0 if judged is None else round(float(judged.suspicion[0, place]), 4),
        listed.caption_id(row) if is_caption else "",
    )


def _image_id(split: ShownRows, image: int) -> str:
    return split.ids[image] if image >= 0 else ""


def _positives(
    rows: Int32[np.ndarray, " own"], listed: AnchorList, split: ShownRows, store: EmbeddingStore | None
) -> Iterator[Positive]:
    is_caption, scores = listed.direction == "i2t", [None] * len(rows)
    if store is not None:
        anchors, candidates = (store.images, store.captions) if is_caption else (store.captions, store.images)
        one = anchors[listed.anchor : listed.anchor + 1]
        scores = exact_scores(one, candidates, np.array([0, len(rows)]), rows).tolist()
    for row, score in zip(rows.tolist(), scores, strict=True):
        above = listed.lists.h if score is None else int((listed.lists.scores >= score).sum())
        text, caption_id = (split.captions[row], listed.caption_id(row)) if is_caption else (split.ids[row], "")
        yield Positive(row, text, score, above + 1 if above < listed.lists.h else None, caption_id)


def _duplicate(texts: Sequence[Sequence[str]], own_words: Sequence[Sequence[str]]) -> str:
    """Compare captions: "same text", or "near-duplicate" where 4 of 5 words are in common; else empty."""
    pairs = [(words, own) for words in texts for own in own_words if words and own]
    if any(words == own for words, own in pairs):
        return "same text"
    shares = (len({*words} & {*own}) / len({*words} | {*own}) for words, own in pairs)
    return "near-duplicate" if any(share >= NEAR_DUPLICATE for share in shares) else ""
