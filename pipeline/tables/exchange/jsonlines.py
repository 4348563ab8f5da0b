"""Formats of one JSON object a line and anchor: FlagEmbedding's and Tevatron's.

flagembedding  query, pos, neg [, pos_scores, neg_scores]
tevatron       query_id, query, positive_passages, negative_passages   passages of docid, title and text
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aoq.pipeline.tables.exchange.outgoing import Chunk, Names, Outgoing
from aoq.pipeline.tables.exchange.written import Written


@dataclass(frozen=True)
class Anchor:
    """One anchor of a chunk, by rows."""

    row: int
    positives: list[int]
    negatives: list[int]
    positive_scores: list[float] | None
    scores: list[float]


def _flagembedding(outgoing: Outgoing, anchor: Anchor) -> dict[str, Any]:
    texts = outgoing.candidates.texts
    line = {
        "query": outgoing.anchors.texts[anchor.row],
        "pos": [texts[row] for row in anchor.positives],
        "neg": [texts[row] for row in anchor.negatives],
    }
    if anchor.positive_scores is None:
        return line
    return {**line, "pos_scores": anchor.positive_scores, "neg_scores": anchor.scores}


def _tevatron(outgoing: Outgoing, anchor: Anchor) -> dict[str, Any]:
    return {
        "query_id": outgoing.anchors.ids[anchor.row],
        "query": outgoing.anchors.texts[anchor.row],
        "positive_passages": _passages(outgoing.candidates, anchor.positives),
        "negative_passages": _passages(outgoing.candidates, anchor.negatives),
    }


def _passages(names: Names, rows: list[int]) -> list[dict[str, str]]:
    return [{"docid": names.ids[row], "title": "", "text": names.texts[row]} for row in rows]


def _anchors(chunk: Chunk) -> Iterator[Anchor]:
    offsets = chunk.positives.offsets.tolist()
    positive_scores = chunk.positive_scores
    for place, length in enumerate(chunk.lengths.tolist()):
        own = slice(offsets[place], offsets[place + 1])
        yield Anchor(
            chunk.first + place,
            chunk.positives.ids[own].tolist(),
            chunk.ids[place, :length].tolist(),
            None if positive_scores is None else positive_scores[own].tolist(),
            chunk.scores[place, :length].tolist(),
        )


def _write(make: Callable[[Outgoing, Anchor], dict[str, Any]], outgoing: Outgoing, path: Path) -> Written:
    """An anchor without positives or without negatives is left out: the trainers draw from both."""
    rows = left_out = 0
    with path.open("w", encoding="utf-8") as file:
        for chunk in outgoing.chunks():
            for anchor in _anchors(chunk):
                if anchor.positives and anchor.negatives:
                    file.write(json.dumps(make(outgoing, anchor), ensure_ascii=False) + "\n")
                    rows += 1
                else:
                    left_out += 1
    return Written(rows, left_out)


def write_flagembedding(outgoing: Outgoing, path: Path) -> Written:
    return _write(_flagembedding, outgoing, path)


def write_tevatron(outgoing: Outgoing, path: Path) -> Written:
    return _write(_tevatron, outgoing, path)
