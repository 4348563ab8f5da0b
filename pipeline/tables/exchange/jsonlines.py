"""Formats of one JSON object a line and anchor: FlagEmbedding's and Tevatron's.

flagembedding  query, pos, neg [, pos_scores, neg_scores]
tevatron       query_id, query, positive_passages, negative_passages   passages of docid, title and text
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aoq.pipeline.tables.exchange.outgoing import Chunk, Names, Outgoing, Written


def _flagembedding(outgoing: Outgoing, chunk: Chunk, place: int, own: slice, length: int) -> dict[str, Any]:
    texts = outgoing.candidates.texts
    line: dict[str, Any] = {
        "query": outgoing.anchors.texts[chunk.first + place],
        "pos": [texts[row] for row in chunk.positives.ids[own]],
        "neg": [texts[row] for row in chunk.ids[place, :length]],
    }
    if chunk.positive_scores is not None:
        line["pos_scores"] = chunk.positive_scores[own].tolist()
        line["neg_scores"] = chunk.scores[place, :length].tolist()
    return line


def _tevatron(outgoing: Outgoing, chunk: Chunk, place: int, own: slice, length: int) -> dict[str, Any]:
    return {
        "query_id": outgoing.anchors.ids[chunk.first + place],
        "query": outgoing.anchors.texts[chunk.first + place],
        "positive_passages": _passages(outgoing.candidates, chunk.positives.ids[own].tolist()),
        "negative_passages": _passages(outgoing.candidates, chunk.ids[place, :length].tolist()),
    }


def _passages(names: Names, rows: list[int]) -> list[dict[str, str]]:
    return [{"docid": names.ids[row], "title": "", "text": names.texts[row]} for row in rows]


def _write(
    make: Callable[[Outgoing, Chunk, int, slice, int], dict[str, Any]], outgoing: Outgoing, path: Path
) -> Written:
    """An anchor without positives or without negatives is left out: the trainers draw from both."""
    rows = left_out = 0
    with path.open("w", encoding="utf-8") as file:
        for chunk in outgoing.chunks():
            offsets = chunk.positives.offsets.tolist()
            for place, length in enumerate(chunk.lengths.tolist()):
                own = slice(offsets[place], offsets[place + 1])
                if own.start < own.stop and length:
                    line = make(outgoing, chunk, place, own, length)
                    file.write(json.dumps(line, ensure_ascii=False) + "\n")
                    rows += 1
                else:
                    left_out += 1
    return Written(rows, left_out)


def write_flagembedding(outgoing: Outgoing, path: Path) -> Written:
    return _write(_flagembedding, outgoing, path)


def write_tevatron(outgoing: Outgoing, path: Path) -> Written:
    return _write(_tevatron, outgoing, path)
