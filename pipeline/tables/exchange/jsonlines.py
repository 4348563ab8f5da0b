"""Formats of one JSON object per line: FlagEmbedding's and ms-swift's.

flagembedding  query, pos, neg [, pos_scores, neg_scores]                 a line per anchor; texts
ms-swift       messages, images, positive_messages, positive_images,      a line per pair: it reads one positive
               negative_messages, negative_images
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from aoq.pipeline.tables.exchange.outgoing import Listed, Names, Outgoing, Written

IMAGE = "<image>"
"""Placeholder of the next of a message's images in ms-swift."""

LOAD_FLAGEMBEDDING = """
torchrun -m FlagEmbedding.finetune.embedder.encoder_only.base --train_data $folder/train.jsonl --train_group_size 8 …
"""
LOAD_SWIFT = """
# Every listed negative is encoded with its pair: --num-negatives decides what a step costs.
swift sft --dataset $folder/train.jsonl --task_type embedding --loss_type infonce …
"""


def _flagembedding(outgoing: Outgoing, one: Listed) -> Iterator[dict[str, Any]]:
    texts = outgoing.candidates.values
    line: dict[str, Any] = {
        "query": outgoing.anchors.values[one.anchor],
        "pos": [texts[row] for row in one.positives],
        "neg": [texts[row] for row in one.negatives],
    }
    if outgoing.scored:
        line |= {"pos_scores": one.positive_scores.tolist(), "neg_scores": one.scores.tolist()}
    yield line


def _swift(outgoing: Outgoing, one: Listed) -> Iterator[dict[str, Any]]:
    def said(side: Names, row: int) -> list[dict[str, str]]:
        return [{"role": "user", "content": IMAGE if side.are_pictures else side.values[row]}]

    anchors, candidates = outgoing.anchors, outgoing.candidates
    for positive in one.positives.tolist():
        line: dict[str, Any] = {"messages": said(anchors, one.anchor)}
        if anchors.are_pictures:
            line["images"] = [anchors.values[one.anchor]]
        for prefix, rows in (("positive", [positive]), ("negative", one.negatives.tolist())):
            line[f"{prefix}_messages"] = [said(candidates, row) for row in rows]
            if candidates.are_pictures:
                line[f"{prefix}_images"] = [[candidates.values[row]] for row in rows]
        yield line


def _write(make: Callable[[Outgoing, Listed], Iterator[dict[str, Any]]], outgoing: Outgoing, folder: Path) -> Written:
    """Write a line per anchor; one without positives or negatives is left out, as the trainers draw from both."""
    folder.mkdir()
    rows = anchors = 0
    with (folder / "train.jsonl").open("w", encoding="utf-8") as file:
        for one in outgoing.complete():
            anchors += 1
            for line in make(outgoing, one):
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
                rows += 1
    return Written(rows, len(outgoing.anchors.ids) - anchors)


write_flagembedding = partial(_write, _flagembedding)
write_swift = partial(_write, _swift)
