"""A report: one self-contained HTML page about any number of runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import torch

from aoq.pipeline.artifact import Artifact
from aoq.pipeline.console import visible_value
from aoq.pipeline.data.images import Thumbnails
from aoq.pipeline.data.vocabulary import tokenise
from aoq.pipeline.evaluation.attention import word_attention
from aoq.pipeline.evaluation.significance import RECALL_METRICS
from aoq.pipeline.report import collect
from aoq.pipeline.report.collect import ReportedRun
from aoq.pipeline.report.plots import PALETTE, curves, hardness, histogram_of_ranks
from aoq.pipeline.report.verdict import GainParts, on_dev, verdicts
from aoq.pipeline.search.problem import DIRECTIONS, OPPOSITE, Direction
from aoq.pipeline.stages.chain import Chain, table_depths, table_owner
from aoq.pipeline.stages.splits import open_named_pairs, open_train_split
from aoq.pipeline.tables.card import describe_guarantee
from aoq.pipeline.tables.files import search_facts
from aoq.pipeline.tables.inspection import inspect_anchor
from aoq.pipeline.tables.statistics import describe
from aoq.pipeline.tables.table import read_table
from aoq.pipeline.training.checkpoint import load_model
from aoq.pipeline.training.metrics import read_metrics

COURSE = {
    "dev_rsum": "dev rsum",
    "dev_i2t_r1": "dev i2t@1",
    "dev_t2i_r1": "dev t2i@1",
    "retrieval_loss": "loss",
    "online": "online term",
    "offline": "offline term",
    "derived": "derived term",
    "weight_mean": "mean adaptive weight",
    "hardness": "hardness of online negatives",
    "temperature": "temperature",
    "offline_harder_share": "offline negatives harder than the batch's hardest",
    "collision_rate": "matching pairs drawn as negatives",
    "positive_gap": "positives above the batch's mean",
}
GLOSSARY = {
    "rsum": "The sum of the six recalls: R@1, R@5 and R@10, of captions for an image and of images for a caption. "
    "At most 600.",
    "i2t": "Image to text: an image is the query, captions are searched.",
    "t2i": "Text to image: a caption is the query, images are searched.",
    "R@K": "Recall at K: the percentage of queries with a right answer among the first K.",
    "95 % interval": "The range of 95 % of the bootstrap's replicates. A replicate draws test images with replacement, "
    "each with its captions.",
    "p": "The probability of a difference at least as large if the two runs were exchanged at random, image by image.",
    "control": "The same training without offline negatives or teachers' scores: the baseline of round two.",
    "PMRP": "Plausible-match R-Precision: R-Precision where images that differ in at most 0, 1 or 2 of the things they "
    "show count as matches.",
    "R-Precision": "For a query with R right answers, the percentage of them among its first R.",
    "mAP@R": "For a query with R right answers, the mean of the precision at each right answer among its first R.",
    "Spearman": "Rank correlation of the model's scores with people's, times 100.",
    "Kendall": "Kendall's rank correlation of the model's scores with people's, times 100.",
    "▲": "At least as similar to the anchor as its lowest-scoring positive: perhaps a false negative.",
    "near-duplicate": "Shares four of five words with a caption of the anchor: probably a false negative.",
    "cross-retrieval rank": "The worse of a pair's two ranks, one in each direction.",
}
"""Definitions of the page's terms, each shown when its term is chosen."""

TITLES: dict[Direction, str] = {"i2t": "captions of images", "t2i": "images of captions"}
ANCHORS, _TOP, QUERIES, ANSWERS, CAPTIONS = 6, 6, 6, 5, 4
FAR = 50
"""Ranks beyond this count as equal when runs are compared on a query."""


def render(named: Sequence[tuple[str, Chain]], evaluating: Callable[[str], str], parts: Mapping[str, GainParts]) -> str:
    """Render the page about named experiments; `evaluating` gives the command that makes a run's evaluation.

    `parts` has, by run name, the trainings that show what each part of its method gains.
    """
    runs = collect.collect_runs(named)
    shown = [run for run in runs if run.scored or not collect.is_control(run.chain)] or runs
    by_name = {run.name: colour for run, colour in zip(shown, cycle(PALETTE), strict=False)}
    colours = {run.label: by_name[run.name] for run in shown}
    counts = {run.label: run.scored.cross_ranks for run in shown if run.scored}
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=visible_value,
    )
    environment.filters["score"] = lambda value: f"{value:.3f}" if np.isfinite(value) else "no score"
    environment.filters["signed"] = lambda value: f"{value:+.1f}".replace("-", "−")
    return environment.get_template("page.html.j2").render(
        runs=runs,
        shown=shown,
        results=[*((run, None) for run in shown), *((None, teacher) for teacher in collect.collect_teachers(shown))],
        labels={run.name: run.label for run in runs},
        evaluating=evaluating,
        colours=by_name,
        terms=list(GLOSSARY),
        glossary=GLOSSARY,
        depths=table_depths,
        metrics=RECALL_METRICS,
        baselines=list(dict.fromkeys(run.baseline for run in shown if run.baseline and run.baseline in by_name)),
        verdicts=verdicts(runs, parts),
        on_dev=on_dev(shown),
        alone=[run for run in shown if len(shown) == 1],
        missing=[run for run in runs if not run.scored],
        courses=_courses(shown, colours),
        cross=histogram_of_ranks(counts, colours) if counts else None,
        right=_by_file(_measured(shown, "relevance")),
        plausible=_measured(shown, "plausible"),
        judged=[(run, *file) for run, files in _measured(shown, "judgements").items() for file in files.items()],
        attention=_attention(shown, colours),
        stages=collect.collect_stages(shown),
        tables=tables(shown),
        examples=examples(shown),
        attended=list(attended(shown)),
    )


def _courses(runs: Sequence[ReportedRun], colours: dict[str, str]) -> list[str]:
    """Plot every figure that some run logged more than once, all runs together."""
    logs = {}
    for run in (each for each in runs if each.trains):
        training = run.chain["second_round"]  # finished or not
        path = (training.opened() if training.exists() else training.work) / "metrics.jsonl"
        logs[run.label] = read_metrics(path) if path.is_file() else []
    plots = []
    for figure, title in COURSE.items():
        lines = {}
        for name, log in logs.items():
            if points := [(float(line["step"]), float(line[figure])) for line in log if line.get(figure) is not None]:
                steps, values = zip(*points, strict=True)
                lines[name] = steps, values
        if any(len(steps) > 1 for steps, _ in lines.values()):
            plots.append(curves(title, lines, colours, "steps", title, is_loss=figure in ("retrieval_loss", "online")))
    return plots


def _measured(runs: Sequence[ReportedRun], what: str) -> dict[str, Any]:
    return {run.name: run.scored.evaluation[what] for run in runs if run.scored and what in run.scored.evaluation}


def _by_file(relevance: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    names = dict.fromkeys(name for files in relevance.values() for name in files)
    return {name: {run: files[name] for run, files in relevance.items() if name in files} for name in names}


def _attention(runs: Sequence[ReportedRun], colours: dict[str, str]) -> str | None:
    attention = {run.label: run.scored.evaluation.get("attention") for run in runs if run.scored}
    drawn = {label: measures["curve"] for label, measures in attention.items() if measures}
    lines = {label: (curve["recall"], curve["precision"]) for label, curve in drawn.items()}
    return curves("Attention", lines, colours, "recall, %", "precision, %") if lines else None


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
    """Yield the queries on which the runs differ most, then random ones, each with every run's first answers."""
    split, scored = runs[0].split, {run.name: run.scored for run in runs if run.scored}
    ranks = [each.ranks.i2t if direction == "i2t" else each.ranks.t2i for each in scored.values()]
    order = np.random.default_rng(0).permutation(len(ranks[0]))
    spread = np.ptp(np.minimum(ranks, FAR), axis=0)
    order, half = order[np.argsort(-spread[order], kind="stable")], QUERIES // 2
    for query in [*order[:half].tolist(), *np.sort(order[half:])[: QUERIES - half].tolist()]:
        ranked = {name: collect.ranked_answers(one.similarity, split, direction, query) for name, one in scored.items()}
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
        model = load_model(
            run.chain["second_round"].opened() / "model.safetensors", **run.chain.experiment.model.towers
        )
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
