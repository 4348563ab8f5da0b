"""A report: one self-contained HTML page about any number of runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from aoq.pipeline.evaluation.significance import METRICS
from aoq.pipeline.report.collect import (
    Run,
    collect_runs,
    collect_stages,
    collect_teachers,
    is_control,
    measured,
    training_lines,
)
from aoq.pipeline.report.pictures import OpenModel, OpenTrain, attended, examples, tables
from aoq.pipeline.report.plots import COLOURS, curves, histogram_of_ranks
from aoq.pipeline.report.terms import TERMS
from aoq.pipeline.report.verdict import on_dev, verdicts
from aoq.pipeline.stages.chain import Chain, table_depths
from aoq.pipeline.terminal import visible_value

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
LOSSES = {"retrieval_loss", "online"}
Evaluating = Callable[[str], str]
"""Return the command that makes a run's evaluation and everything it needs."""


def render(
    named: Sequence[tuple[str, Chain]], *, open_train: OpenTrain, open_model: OpenModel, evaluating: Evaluating
) -> str:
    """Render the page about named experiments."""
    runs = collect_runs(named)
    shown = [run for run in runs if run.scored or not is_control(run.chain)] or runs
    by_name = {run.name: colour for run, colour in zip(shown, cycle(COLOURS), strict=False)}
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
        results=[*((run, None) for run in shown), *((None, teacher) for teacher in collect_teachers(shown))],
        labels={run.name: run.label for run in runs},
        evaluating=evaluating,
        colours=by_name,
        terms=list(TERMS),
        glossary=TERMS,
        depths=table_depths,
        metrics=METRICS,
        baselines=list(dict.fromkeys(run.baseline for run in shown if run.baseline and run.baseline in by_name)),
        verdicts=verdicts(runs),
        on_dev=on_dev(shown),
        alone=[run for run in shown if len(shown) == 1],
        missing=[run for run in runs if not run.scored],
        courses=_courses(shown, colours),
        cross=histogram_of_ranks(counts, colours) if counts else None,
        right=_by_file(measured(shown, "relevance")),
        plausible=measured(shown, "plausible"),
        judged=[(run, *file) for run, files in measured(shown, "judgements").items() for file in files.items()],
        attention=_attention(shown, colours),
        stages=collect_stages(shown),
        tables=tables(shown, open_train),
        examples=examples(shown),
        attended=list(attended(shown, open_model)),
    )


def _courses(runs: Sequence[Run], colours: dict[str, str]) -> list[str]:
    """Plot every figure that some run logged more than once, all runs together."""
    logs = {run.label: training_lines(run) for run in runs if run.trains}
    plots = []
    for figure, title in COURSE.items():
        lines = {}
        for name, log in logs.items():
            if points := [(float(line["step"]), float(line[figure])) for line in log if line.get(figure) is not None]:
                steps, values = zip(*points, strict=True)
                lines[name] = steps, values
        if any(len(steps) > 1 for steps, _ in lines.values()):
            plots.append(curves(title, lines, colours, "steps", title, is_loss=figure in LOSSES))
    return plots


def _by_file(relevance: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Group metrics by relevance file, then by run."""
    names = dict.fromkeys(name for files in relevance.values() for name in files)
    return {name: {run: files[name] for run, files in relevance.items() if name in files} for name in names}


def _attention(runs: Sequence[Run], colours: dict[str, str]) -> str | None:
    attention = {run.label: run.scored.evaluation.get("attention") for run in runs if run.scored}
    found = {label: measures["curve"] for label, measures in attention.items() if measures}
    lines = {label: (curve["recall"], curve["precision"]) for label, curve in found.items()}
    return curves("Attention", lines, colours, "recall, %", "precision, %") if lines else None
