"""One self-contained HTML page about any number of runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from aoq.models.base import MatchingModel
from aoq.pipeline.data.batches import PairData
from aoq.pipeline.data.folder import Split
from aoq.pipeline.data.thumbnails import Thumbnails
from aoq.pipeline.evaluation.significance import METRICS
from aoq.pipeline.extras import import_extra
from aoq.pipeline.planning.chain import Chain
from aoq.pipeline.report.collect import (
    Run,
    best_of,
    collect_runs,
    collect_stages,
    collect_tables,
    measured,
    training_lines,
)
from aoq.pipeline.report.pictures import attended_captions, examples, listed_anchors
from aoq.pipeline.report.plots import colour, curves, hardness, histogram_of_ranks
from aoq.pipeline.search.problem import OTHER, Direction
from aoq.pipeline.tables.statistics import describe
from aoq.pipeline.tables.table import read_table

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
TITLES: dict[Direction, str] = {"i2t": "captions of images", "t2i": "images of captions"}
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
    jinja2 = import_extra("jinja2", "report", "a report")
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
    counts = {run.name: run.scored.cross_ranks for run in runs if run.scored}
    return environment.get_template("page.html.j2").render(
        runs=runs,
        colours=colours,
        metrics=METRICS,
        best={metric: best_of(runs, metric) for metric in METRICS},
        courses=_courses(runs, colours),
        cross=histogram_of_ranks(counts, colours) if counts else None,
        right=_by_file(measured(runs, "relevance")),
        plausible=measured(runs, "plausible"),
        judged=measured(runs, "judgements"),
        attention=_attention(runs, colours),
        stages=collect_stages(runs),
        tables=[_table(*each, open_train) for each in collect_tables(runs)],
        examples=_examples(runs),
        attended=_attended(runs, open_model),
    )


def _courses(runs: Sequence[Run], colours: dict[str, str]) -> list[str]:
    """Every figure of the logs that any run has, all runs on one axis."""
    logs = {run.name: training_lines(run) for run in runs if run.trains}
    plots = []
    for figure, title in COURSE.items():
        there = {name: [line for line in log if line.get(figure) is not None] for name, log in logs.items()}
        lines = {
            name: ([float(line["step"]) for line in log], [float(line[figure]) for line in log])
            for name, log in there.items()
            if log
        }
        if lines:
            plots.append(curves(title, lines, colours, "steps", title, is_loss=figure in LOSSES))
    return plots


def _by_file(relevance: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Group by the name of a relevance file, then by run: metrics by direction."""
    names = dict.fromkeys(name for files in relevance.values() for name in files)
    return {name: {run: files[name] for run, files in relevance.items() if name in files} for name in names}


def _attention(runs: Sequence[Run], colours: dict[str, str]) -> str | None:
    found = {name: attention["curve"] for name, attention in measured(runs, "attention").items()}
    lines = {name: (curve["recall"], curve["precision"]) for name, curve in found.items()}
    return curves("Attention", lines, colours, "recall, %", "precision, %") if lines else None


def _table(
    runs: list[str], owner: Chain, suspected: dict[str, Any] | None, open_train: Callable[[Chain], Split]
) -> dict[str, Any]:
    """A table that runs train on, in both directions: what it is, its scores, and some of its lists."""
    table, split = read_table(owner["hard_negatives"].path / "table"), open_train(owner)
    thumbs, directions = Thumbnails(owner.folder, split), []
    for direction, title in TITLES.items():
        lists, name = table[direction], owner.experiment.name
        scores, positives = _some(lists.scores.ravel()), _some(lists.positive_score)
        directions.append(
            {
                "name": direction,
                "title": title,
                "about": describe(lists, len(table[OTHER[direction]])),
                "plot": hardness(f"Scores, {title}, {name}", scores, positives),
                "listed": listed_anchors(table, split, thumbs, direction, count=ANCHORS, top=TOP),
            }
        )
    return {"runs": runs, "owner": owner.experiment.name, "suspected": suspected, "directions": directions}


def _some(values: Float[np.ndarray, " values"]) -> Float[np.ndarray, " some"]:
    """Enough of them for a picture."""
    finite = values[np.isfinite(values)]
    return finite[:: max(1, len(finite) // MOST_SCORES)]


def _examples(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """What the first runs that answered the same queries find: at most two, side by side."""
    scored = [run for run in runs if run.scored and (run is runs[0] or run.against_first)][:2]
    if not scored:
        return []
    thumbs = Thumbnails(scored[0].chain.folder, scored[0].split)
    asked: dict[Direction, str] = {"i2t": "Captions for an image", "t2i": "Images for a caption"}
    return [
        {"title": title, "queries": examples(scored, thumbs, direction, count=QUERIES, top=ANSWERS)}
        for direction, title in asked.items()
    ]


def _attended(runs: Sequence[Run], open_model: Callable[[Chain], Opened]) -> list[dict[str, Any]]:
    found = []
    for run in runs:
        if run.trains and run.scored and run.chain.experiment.model.attends and run.split.boxes is not None:
            thumbs = Thumbnails(run.chain.folder, run.split)
            found += attended_captions(run.name, *open_model(run.chain), thumbs, count=CAPTIONS)
    return found
