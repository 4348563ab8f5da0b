"""One self-contained HTML page about any number of runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from jaxtyping import Float

from aoq.models.base import MatchingModel
from aoq.pipeline.data.batches import PairData
from aoq.pipeline.data.folder import Split
from aoq.pipeline.data.thumbnails import Thumbnails
from aoq.pipeline.evaluation.significance import METRICS
from aoq.pipeline.planning.chain import Chain
from aoq.pipeline.report.collect import (
    Run,
    best_of,
    collect_runs,
    collect_stages,
    collect_tables,
    many_right,
    training_lines,
)
from aoq.pipeline.report.pictures import attended_captions, examples, listed_anchors
from aoq.pipeline.report.plots import colour, curves, hardness, histogram_of_ranks
from aoq.pipeline.search.problem import Direction

COURSE = {
    "dev_rsum": "dev rsum",
    "dev_i2t_r1": "dev i2t@1",
    "dev_t2i_r1": "dev t2i@1",
    "retrieval_loss": "loss",
    "online": "online term",
    "offline": "offline term",
    "derived": "derived term",
    "weight_mean": "mean adaptive weight",
    "collision_rate": "corresponding draws",
    "positive_gap": "positives above the batch's mean",
}
LOSSES = {"retrieval_loss", "online"}
ANCHORS, TOP, QUERIES, ANSWERS, CAPTIONS = 6, 6, 6, 5, 4
MOST_SCORES = 200_000

Opened = tuple[MatchingModel, PairData]


def render(
    named: Sequence[tuple[str, Chain]],
    *,
    open_train: Callable[[Chain], Split],
    open_model: Callable[[Chain], Opened],
) -> str:
    """The page about experiments by name; `open_train` opens a training split, `open_model` a trained model."""
    runs = collect_runs(named)
    colours = {run.name: colour(number) for number, run in enumerate(runs)}
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["score"] = lambda value: f"{value:.3f}" if np.isfinite(value) else "no score"
    environment.filters["signed"] = lambda value: f"{value:+.1f}".replace("-", "−")
    return environment.get_template("page.html.j2").render(
        runs=runs,
        colours=colours,
        metrics=METRICS,
        best={metric: best_of(runs, metric) for metric in METRICS},
        courses=_courses(runs, colours),
        cross=_cross(runs, colours),
        right=many_right(runs),
        plausible=_beyond(runs, "plausible"),
        judged=_beyond(runs, "judgements"),
        attention=_attention(runs, colours),
        stages=collect_stages(runs),
        tables=_tables(runs, open_train),
        examples=_examples(runs),
        attended=_attended(runs, open_model),
    )


def _courses(runs: Sequence[Run], colours: dict[str, str]) -> list[str]:
    """Every figure of the logs that any run has, all runs on one axis."""
    logs = {run.name: training_lines(run) for run in runs if run.trains}
    plots = []
    for figure, title in COURSE.items():
        lines = {}
        for name, log in logs.items():
            there = [line for line in log if line.get(figure) is not None]
            if there:
                lines[name] = [float(line["step"]) for line in there], [float(line[figure]) for line in there]
        if lines:
            plots.append(curves(title, lines, colours, "steps", title, is_loss=figure in LOSSES))
    return plots


def _beyond(runs: Sequence[Run], what: str) -> dict[str, Any]:
    """By run, where its evaluation measured it."""
    return {run.name: run.scored.evaluation[what] for run in runs if run.scored and what in run.scored.evaluation}


def _cross(runs: Sequence[Run], colours: dict[str, str]) -> str | None:
    counts = {run.name: run.scored.cross_ranks for run in runs if run.scored}
    return histogram_of_ranks(counts, colours) if counts else None


def _attention(runs: Sequence[Run], colours: dict[str, str]) -> str | None:
    lines = {}
    for run in runs:
        if run.scored and run.scored.attention:
            curve = run.scored.attention["curve"]
            lines[run.name] = (curve["recall"], curve["precision"])
    return curves("Attention", lines, colours, "recall, %", "precision, %") if lines else None


def _tables(runs: Sequence[Run], open_train: Callable[[Chain], Split]) -> list[dict[str, Any]]:
    found = []
    for table in collect_tables(runs):
        split = open_train(table.owner)
        thumbs = Thumbnails(table.owner.folder, split)
        directions: tuple[tuple[Direction, str], ...] = (("i2t", "captions of images"), ("t2i", "images of captions"))
        found.append(
            {
                "runs": table.runs,
                "owner": table.owner.experiment.name,
                "manifest": table.table.manifest,
                "suspected": table.suspected,
                "directions": [
                    {
                        "name": direction,
                        "title": title,
                        "about": table.about[direction],
                        "plot": hardness(
                            f"Scores, {title}, {table.owner.experiment.name}",
                            _some(table.table[direction].scores.ravel()),
                            _some(table.table[direction].positive_score),
                        ),
                        "listed": listed_anchors(table.table, split, thumbs, direction, count=ANCHORS, top=TOP),
                    }
                    for direction, title in directions
                ],
                "captions": split.captions,
                "captions_of": split.captions_of,
            }
        )
    return found


def _some(values: Float[np.ndarray, " values"]) -> Float[np.ndarray, " some"]:
    """Enough of them for a picture."""
    finite = values[np.isfinite(values)]
    return finite[:: max(1, len(finite) // MOST_SCORES)]


def _examples(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Of the first runs that answered the same queries: at most two, side by side."""
    scored = [run for run in runs if run.scored and (run is runs[0] or run.against_first)][:2]
    if not scored:
        return []
    thumbs = Thumbnails(scored[0].chain.folder, scored[0].split)
    asked: tuple[tuple[Direction, str, int], ...] = (
        ("i2t", "Captions for an image", 5),
        ("t2i", "Images for a caption", 5),
    )
    return [
        {"title": title, "queries": examples(scored, thumbs, direction, count=QUERIES, top=top)}
        for direction, title, top in asked
    ]


def _attended(runs: Sequence[Run], open_model: Callable[[Chain], Opened]) -> list[Any]:
    found = []
    for run in runs:
        if run.trains and run.scored and run.chain.experiment.model.attends and run.split.boxes is not None:
            thumbs = Thumbnails(run.chain.folder, run.split)
            found += attended_captions(run.name, *open_model(run.chain), thumbs, count=CAPTIONS)
    return found
