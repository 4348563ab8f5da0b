"""One anchor's list with its texts, its positives, and where they would rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float32, Int32, Int64, UInt8, UInt16

from aoq.pipeline.data.folder import Split
from aoq.pipeline.data.vocabulary import tokenise
from aoq.pipeline.embedding import EmbeddingStore
from aoq.pipeline.search.problem import Direction
from aoq.pipeline.search.scores import exact_scores
from aoq.pipeline.tables.files import said_of
from aoq.pipeline.tables.screens.rules import bit, rules_of
from aoq.pipeline.tables.screens.view import View
from aoq.pipeline.tables.table import NegativeTable

NEAR_DUPLICATE = 0.8


@dataclass(frozen=True)
class Positive:
    row: int
    text: str
    score: float | None
    """None where the teacher's embeddings are gone; the table itself keeps the lowest only."""
    rank: int | None
    """1 + the negatives at least as similar; None where it lies beyond the list."""


@dataclass(frozen=True)
class Negative:
    rank: int
    row: int
    image_id: str
    text: str
    score: float
    above_positive: bool
    """At least as similar as the anchor's lowest-scoring positive."""
    duplicate: str
    """"same text" or "near-duplicate" of a positive caption: probably no negative at all; else empty."""
    sources: list[str]
    """The members of a fused table that list it."""
    flags: tuple[str, ...] = ()
    """The rules of the view that it meets."""
    suspicion: float = 0.0
    """0 to 1, the view's."""


@dataclass(frozen=True)
class Inspection:
    direction: Direction
    anchor: int
    image_id: str
    text: str
    h: int
    lowest_positive_score: float | None
    """None where the table's scores say nothing of positives."""
    positives: list[Positive]
    negatives: list[Negative]


@dataclass(frozen=True)
class AnchorList:
    """An anchor's list as its table has it, and as a view sees it."""

    direction: Direction
    anchor: int
    negative_ids: Int32[np.ndarray, " h"]
    scores: Float32[np.ndarray, " h"]
    positive_score: float
    """NaN where there is none."""
    flags: UInt16[np.ndarray, " h"]
    suspicion: Float32[np.ndarray, " h"]
    sources: UInt8[np.ndarray, " h"] | None = None
    members: Sequence[str] = ()
    """A fused table's; bit m of `sources` stands for member m."""

    def __len__(self) -> int:
        return len(self.negative_ids)


def inspect_anchor(
    table: NegativeTable,
    split: Split,
    direction: Direction,
    anchor: int,
    top: int,
    store: EmbeddingStore | None,
    view: View | None = None,
    only: str = "",
) -> Inspection:
    """The first `top` negatives of an image (i2t) or a caption (t2i), as the view sees them if there is one.

    `only` is a rule that they meet, or "left": those without flags.
    """
    lists = table[direction]
    listed = AnchorList(
        direction,
        anchor,
        lists.negative_ids[anchor],
        lists.scores[anchor],
        float(lists.positive_score[anchor]),
        np.zeros(lists.h, np.uint16) if view is None else view[direction].flags[anchor],
        np.zeros(lists.h, np.float32) if view is None else view[direction].suspicion[anchor],
        None if lists.sources is None else lists.sources[anchor],
        members_of(table.manifest, direction),
    )
    places = np.flatnonzero((listed.negative_ids >= 0) & _chosen(listed.flags, only))[:top]
    return inspect_list(listed, split, places, store)


def members_of(manifest: Mapping[str, Any], direction: Direction) -> Sequence[str]:
    """The tables that a fused table joins; none for any other."""
    sources: Sequence[str] = said_of(manifest, direction).get("sources", [])
    return sources


def inspect_list(
    listed: AnchorList, split: Split, places: Int64[np.ndarray, " some"], store: EmbeddingStore | None
) -> Inspection:
    """The negatives at these places of the list, beside the anchor's positives."""
    direction, anchor = listed.direction, listed.anchor
    image = anchor if direction == "i2t" else int(split.image_of[anchor])
    own = split.captions_of[image] if direction == "i2t" else np.array([anchor], dtype=np.int32)
    ours = [tokenise(split.captions[row]) for row in own]
    positives = own if direction == "i2t" else np.array([image], dtype=np.int32)
    return Inspection(
        direction,
        anchor,
        split.ids[image],
        split.captions[anchor] if direction == "t2i" else "",
        len(listed),
        None if np.isnan(listed.positive_score) else listed.positive_score,
        _positives(positives, split, direction, anchor, listed.scores, store),
        [_negative(listed, split, place, ours) for place in places.tolist()],
    )


def _negative(listed: AnchorList, split: Split, place: int, ours: Sequence[Sequence[str]]) -> Negative:
    row, score = int(listed.negative_ids[place]), float(listed.scores[place])
    is_caption = listed.direction == "i2t"
    texts = [split.captions[caption] for caption in ([row] if is_caption else split.captions_of[row])]
    bits = 0 if listed.sources is None else int(listed.sources[place])
    return Negative(
        place + 1,
        row,
        split.ids[split.image_of[row] if is_caption else row],
        texts[0],
        score,
        score >= listed.positive_score,
        _duplicate([tokenise(text) for text in texts], ours),
        [name for bit, name in enumerate(listed.members) if bits >> bit & 1],
        rules_of(int(listed.flags[place])),
        round(float(listed.suspicion[place]), 4),
    )


def _chosen(flags: UInt16[np.ndarray, " h"], only: str) -> Bool[np.ndarray, " h"]:
    if not only:
        return np.ones(len(flags), dtype=np.bool_)
    return flags == 0 if only == "left" else flags & bit(only) > 0


def _positives(
    rows: np.ndarray, split: Split, direction: Direction, anchor: int, scores: np.ndarray, store: EmbeddingStore | None
) -> list[Positive]:
    if store is not None:
        anchors, candidates = (store.images, store.captions) if direction == "i2t" else (store.captions, store.images)
        one = anchors[anchor : anchor + 1]
        own: Sequence[float | None] = exact_scores(one, candidates, np.array([0, len(rows)]), rows).tolist()
    else:
        own = [None] * len(rows)
    positives = []
    for row, score in zip(rows.tolist(), own, strict=True):
        before = None if score is None else int((scores >= score).sum())
        rank = None if before is None or before == len(scores) else before + 1
        text = split.captions[row] if direction == "i2t" else split.ids[row]
        positives.append(Positive(row, text, score, rank))
    return positives


def _duplicate(theirs: Sequence[Sequence[str]], ours: Sequence[Sequence[str]]) -> str:
    """Whether one of their captions says what one of ours does: the same words, or 4 of 5 in common."""
    if any(words in ours for words in theirs):
        return "same text"
    pairs = [(set(words), set(own)) for words in theirs for own in ours]
    is_near = any(len(a & b) / max(1, len(a | b)) >= NEAR_DUPLICATE for a, b in pairs)
    return "near-duplicate" if is_near else ""
