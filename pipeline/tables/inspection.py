"""Inspection of one anchor's list: its texts, its positives, and their ranks among its negatives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32, Int32

from aoq.pipeline.data.vocabulary import tokenise
from aoq.pipeline.embedding import EmbeddingStore
from aoq.pipeline.search.problem import Direction
from aoq.pipeline.search.scores import exact_scores
from aoq.pipeline.tables.contents import ShownRows
from aoq.pipeline.tables.files import search_facts
from aoq.pipeline.tables.screens.view import View, bit, flagged_rules
from aoq.pipeline.tables.table import NegativeTable

NEAR_DUPLICATE = 0.8


@dataclass(frozen=True)
class Positive:
    """A positive image or caption; a caption has an id if the captions have ids."""

    row: int
    text: str
    score: float | None
    """None if the teacher's embeddings are gone; the table itself keeps only the lowest positive score."""
    rank: int | None
    """1 + the number of negatives at least as similar; None if it lies beyond the list."""
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
    """Describe the first `top` negatives of an image (i2t) or a caption (t2i), judged by the view if there is one.

    `only` keeps those that meet this rule, or, if "left", those without flags; `named` are the captions' ids.
    """
    is_image, lists = direction == "i2t", table[direction][anchor : anchor + 1]
    ids, scores, lowest = lists.negative_ids[0], lists.scores[0], float(lists.positive_score[0])
    flags, suspicion = np.zeros(lists.h, np.uint32), np.zeros(lists.h, np.float32)
    if view is not None:
        flags, suspicion = view[direction].flags[anchor], view[direction].suspicion[anchor]
    sources = np.zeros(lists.h, np.uint8) if lists.sources is None else lists.sources[0]
    members = search_facts(table.manifest, direction).get("sources", ())
    is_shown = ids >= 0
    if only:
        is_shown &= flags == 0 if only == "left" else flags & bit(only) > 0
    own = split.find_answers(direction, anchor)
    own_words = [tokenise(split.captions[row]) for row in (own if is_image else [anchor])]
    negatives = []
    for place in np.flatnonzero(is_shown)[:top].tolist():
        row, score, listed_by = int(ids[place]), float(scores[place]), int(sources[place])
        texts = [split.captions[caption] for caption in ([row] if is_image else split.captions_of[row])]
        negatives.append(
            Negative(
                place + 1,
                row,
                _image_id(split, int(split.image_of[row]) if is_image else row),
                texts[0] if texts else "",
                score,
                score >= lowest,
                _duplicate([tokenise(text) for text in texts], own_words),
                [name for member, name in enumerate(members) if listed_by >> member & 1],
                flagged_rules(int(flags[place])),
                round(float(suspicion[place]), 4),
                named[row] if is_image and named else "",
            )
        )
    return Inspection(
        direction,
        anchor,
        _image_id(split, anchor if is_image else int(split.image_of[anchor])),
        "" if is_image else split.captions[anchor],
        lists.h,
        None if np.isnan(lowest) else lowest,
        [*_inspect_positives(own, direction, anchor, scores, split, store, named)],
        negatives,
        named[anchor] if named and not is_image else "",
    )


def _image_id(split: ShownRows, image: int) -> str:
    return split.ids[image] if image >= 0 else ""


def _inspect_positives(
    rows: Int32[np.ndarray, " own"],
    direction: Direction,
    anchor: int,
    listed: Float32[np.ndarray, " h"],
    split: ShownRows,
    store: EmbeddingStore | None,
    named: Sequence[str],
) -> Iterator[Positive]:
    is_caption, scores = direction == "i2t", [None] * len(rows)
    if store is not None:
        anchors, candidates = (store.images, store.captions) if is_caption else (store.captions, store.images)
        scores = exact_scores(anchors[anchor : anchor + 1], candidates, np.array([0, len(rows)]), rows).tolist()
    for row, score in zip(rows.tolist(), scores, strict=True):
        above = len(listed) if score is None else int((listed >= score).sum())
        text, caption_id = (split.captions[row], named[row] if named else "") if is_caption else (split.ids[row], "")
        yield Positive(row, text, score, above + 1 if above < len(listed) else None, caption_id)


def _duplicate(texts: Sequence[Sequence[str]], own_words: Sequence[Sequence[str]]) -> str:
    """Compare captions: "same text", or "near-duplicate" where 4 of 5 words are in common; else empty."""
    pairs = [(words, own) for words in texts for own in own_words if words and own]
    if any(words == own for words, own in pairs):
        return "same text"
    shares = (len({*words} & {*own}) / len({*words} | {*own}) for words, own in pairs)
    return "near-duplicate" if any(share >= NEAR_DUPLICATE for share in shares) else ""
