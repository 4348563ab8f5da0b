"""Examples on the page: negative tables, runs' answers to queries, and word attention."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from aoq.pipeline.artifact import Artifact
from aoq.pipeline.data.images import Thumbnails
from aoq.pipeline.data.vocabulary import tokenise
from aoq.pipeline.evaluation.attention import word_attention
from aoq.pipeline.report.collect import ReportedRun, ranked_answers
from aoq.pipeline.report.plots import hardness
from aoq.pipeline.search.problem import DIRECTIONS, OPPOSITE, Direction
from aoq.pipeline.stages.chain import Chain, table_owner
from aoq.pipeline.stages.splits import open_named_pairs, open_train_split
from aoq.pipeline.tables.card import describe_guarantee
from aoq.pipeline.tables.files import search_facts
from aoq.pipeline.tables.inspection import inspect_anchor
from aoq.pipeline.tables.statistics import describe
from aoq.pipeline.tables.table import read_table
from aoq.pipeline.training.checkpoint import load_model

TITLES: dict[Direction, str] = {"i2t": "captions of images", "t2i": "images of captions"}
ANCHORS, _TOP, QUERIES, ANSWERS, CAPTIONS = 6, 6, 6, 5, 4
FAR = 50
"""Ranks beyond this count as equal when runs are compared on a query."""


def tables(runs: Sequence[ReportedRun]) -> list[dict[str, Any]]:
    """Describe each pair of a table and a screen that runs train on, with the runs."""
    described: dict[str, dict[str, Any]] = {}
    for run in runs:
        owner, screen = table_owner(run.chain), run.chain.stages.get("screen")
        if owner and run.chain.trains_on_table and (artifact := owner["hard_negatives"]).exists():
            key = artifact.key + (screen.key if screen else "")
            if key not in described:
                described[key] = {"runs": [], **_table(owner, screen)}
            described[key]["runs"].append(run.name)
    return list(described.values())


def _table(owner: Chain, screen: Artifact | None) -> dict[str, Any]:
    """Describe both directions of a table: statistics, scores, random lists, and the screen's counts."""
    table, name = read_table(owner["hard_negatives"].opened() / "table"), owner.experiment.name
    split = open_train_split(owner)
    directions: dict[Direction, dict[str, Any]] = {}
    for direction, title in TITLES.items():
        lists = table[direction]
        anchors = np.random.default_rng(0).choice(len(lists), min(ANCHORS, len(lists)), replace=False)
        directions[direction] = {
            "title": title,
            "guarantee": describe_guarantee(search_facts(table.manifest, direction)),
            "about": describe(lists, len(table[OPPOSITE[direction]])),
            "plot": hardness(f"Scores, {title}, {name}", lists.scores.ravel(), lists.positive_score),
            "listed": [inspect_anchor(table, split, direction, row, _TOP, None) for row in np.sort(anchors).tolist()],
        }
    suspected = screen.manifest()["directions"] if screen and screen.exists() else None
    return {"owner": name, "suspected": suspected, "thumbs": Thumbnails(owner.folder, split), "directions": directions}


def examples(runs: Sequence[ReportedRun]) -> dict[str, Any] | None:
    """Show the answers of the first run with a gain and of its baseline, or else of the first evaluated run."""
    evaluated = {run.name: run for run in runs if run.scored}
    pairs = [[run, evaluated[run.baseline]] for run in evaluated.values() if run.gain and run.baseline]
    scored = next(iter([*pairs, *([run] for run in evaluated.values())]), None)
    if not scored:
        return None
    split, queries = scored[0].split, {direction: list(_select_queries(scored, direction)) for direction in DIRECTIONS}
    thumbs = Thumbnails(scored[0].chain.folder, split)
    return {"split": split, "thumbs": thumbs, "queries": queries, "compared": len(scored)}


def _select_queries(runs: Sequence[ReportedRun], direction: Direction) -> Iterator[tuple[int, dict[str, Any]]]:
    """Select the queries on which the runs differ most, then random ones.

    Yield each with every run's first answers.
    """
    split, scored = runs[0].split, {run.name: run.scored for run in runs if run.scored}
    ranks = [each.ranks.i2t if direction == "i2t" else each.ranks.t2i for each in scored.values()]
    order = np.random.default_rng(0).permutation(len(ranks[0]))
    spread = np.ptp(np.minimum(ranks, FAR), axis=0)
    order, half = order[np.argsort(-spread[order], kind="stable")], QUERIES // 2
    for query in [*order[:half].tolist(), *np.sort(order[half:])[: QUERIES - half].tolist()]:
        ranked = {name: ranked_answers(one.similarity, split, direction, query) for name, one in scored.items()}
        yield query, {name: answers[:ANSWERS] for name, answers in ranked.items()}


def attended(runs: Sequence[ReportedRun]) -> Iterator[dict[str, Any]]:
    """Yield captions with their images: how much each word attends to each box, from 0 to 1.

    Runs whose words do not attend or whose regions have no boxes are skipped, and so are images without a picture.
    """
    for run in runs:
        split = run.split
        attends = run.trains and run.scored and run.chain.experiment.model.attends
        if not attends or split.boxes is None or split.boxes.shape[2] != 4:
            continue
        pairs, thumbs = open_named_pairs(run.chain, split.name), Thumbnails(run.chain.folder, split)
        model = load_model(run.chain["second_round"].opened() / "model.safetensors")
        count = min(CAPTIONS, split.caption_count)
        rows = np.sort(np.random.default_rng(1).choice(split.caption_count, count, replace=False))
        with torch.inference_mode():
            for row, weights in word_attention(model.eval(), pairs, rows, torch.device("cpu")):
                image = int(split.image_of[row])
                words, picture = tokenise(split.captions[row]), thumbs.read(image)
                if picture is not None:
                    used = weights[: len(words)]
                    boxes = np.asarray(split.boxes[image, : used.shape[1]], dtype=np.float64).round(4).tolist()
                    shares = (used / used.max(axis=1, keepdims=True).clip(min=1e-12)).round(3).tolist()
                    yield {"run": run.name, "picture": picture, "boxes": boxes, "words": words, "weights": shares}
