"""One anchor's list with its texts, its positives, and where they would rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, UInt16

from pipeline.data.folder import Split
from pipeline.data.vocabulary import tokenise
from pipeline.embedding import EmbeddingStore
from pipeline.mining.scores import exact_scores
from pipeline.mining.screening.rules import bit, rules_of
from pipeline.mining.screening.view import View
from pipeline.mining.table import Direction, NegativeTable

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

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


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
    image = anchor if direction == "i2t" else int(split.image_of[anchor])
    positive_captions = split.captions_of[image] if direction == "i2t" else np.array([anchor], dtype=np.int32)
    texts = [split.captions[row] for row in positive_captions]
    ids, scores = lists.negative_ids[anchor], lists.scores[anchor]
    lowest = float(lists.positive_scores[anchor])
    names = table.manifest["directions"][direction].get("sources", [])
    negatives = []
    flags = np.zeros(len(ids), np.uint16) if view is None else view[direction].flags[anchor]
    suspicion = np.zeros(len(ids)) if view is None else view[direction].suspicion[anchor]
    for place in np.flatnonzero((ids >= 0) & _chosen(flags, only))[:top].tolist():
        row, score = int(ids[place]), float(scores[place])
        other = int(split.image_of[row]) if direction == "i2t" else row
        theirs = [split.captions[row]] if direction == "i2t" else [split.captions[c] for c in split.captions_of[row]]
        flag = _duplicate(theirs, texts)
        bits = 0 if lists.sources is None else int(lists.sources[anchor, place])
        sources = [name for bit, name in enumerate(names) if bits >> bit & 1]
        seen = rules_of(int(flags[place])), round(float(suspicion[place]), 4)
        negatives.append(
            Negative(place + 1, row, split.ids[other], theirs[0], score, score >= lowest, flag, sources, *seen)
        )
    positive_rows = positive_captions if direction == "i2t" else np.array([image], dtype=np.int32)
    return Inspection(
        direction,
        anchor,
        split.ids[image],
        split.captions[anchor] if direction == "t2i" else "",
        lists.h,
        None if np.isnan(lowest) else lowest,
        _positives(positive_rows, split, direction, anchor, scores, store),
        negatives,
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


def _duplicate(theirs: Sequence[str], ours: Sequence[str]) -> str:
    """Whether one of their captions says what one of ours does: the same words, or 4 of 5 in common."""
    best = 0.0
    for text in theirs:
        for own in ours:
            a, b = set(tokenise(text)), set(tokenise(own))
            best = max(best, len(a & b) / max(1, len(a | b)))
            if tokenise(text) == tokenise(own):
                return "same text"
    return "near-duplicate" if best >= NEAR_DUPLICATE else ""
