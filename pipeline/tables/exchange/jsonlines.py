"""Formats of one JSON object a line and anchor: FlagEmbedding's and Tevatron's.

flagembedding  query, pos, neg [, pos_scores, neg_scores]
tevatron       query_id, query, positive_passages, negative_passages   passages of docid, title and text
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from aoq.pipeline.tables.exchange.outgoing import Listed, Outgoing, Written


def _flagembedding(outgoing: Outgoing, one: Listed) -> dict[str, Any]:
    texts = outgoing.candidates.texts
    line: dict[str, Any] = {
        "query": outgoing.anchors.texts[one.anchor],
        "pos": [texts[row] for row in one.positives],
        "neg": [texts[row] for row in one.negatives],
    }
    if outgoing.scored:
        line |= {"pos_scores": one.positive_scores.tolist(), "neg_scores": one.scores.tolist()}
    return line


def _tevatron(outgoing: Outgoing, one: Listed) -> dict[str, Any]:
    anchors, candidates = outgoing.anchors, outgoing.candidates

    def passages(rows: np.ndarray) -> list[dict[str, str]]:
        return [{"docid": candidates.ids[row], "title": "", "text": candidates.texts[row]} for row in rows]

    return {
        "query_id": anchors.ids[one.anchor],
        "query": anchors.texts[one.anchor],
        "positive_passages": passages(one.positives),
        "negative_passages": passages(one.negatives),
    }


def _write(make: Callable[[Outgoing, Listed], dict[str, Any]], outgoing: Outgoing, path: Path) -> Written:
    """An anchor without positives or without negatives is left out: the trainers draw from both."""
    rows = 0
    with path.open("w", encoding="utf-8") as file:
        for one in outgoing.listed():
            if len(one.positives) and len(one.negatives):
                file.write(json.dumps(make(outgoing, one), ensure_ascii=False) + "\n")
                rows += 1
    return Written(rows, len(outgoing.anchors.ids) - rows)


write_flagembedding = partial(_write, _flagembedding)
write_tevatron = partial(_write, _tevatron)
