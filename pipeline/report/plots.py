"""Plots as inline SVG in the page's colours, light and dark."""

from __future__ import annotations

import html
import io
import re
import textwrap
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import matplotlib
import numpy as np
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from aoq.pipeline.evaluation.retrieval import EDGES

PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#b2a400")
"""The palette of Okabe and Ito, distinguishable with any colour vision."""
INK, RULE = "#123456", "#abcdef"
"""Placeholders, replaced by the page's text and line colours in the finished SVG."""
MOST_POINTS = 300
"""About how many points are drawn per line, so that the page of a long training is small enough to mail."""
FEW = 40
"""Lines with fewer points show them as dots."""
LARGE_RATIO = 30
LABEL_WIDTH = 36
SCORES_DRAWN = 200_000
STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "aoq",
    "font.family": "sans-serif",
    "font.size": 10,
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
    **dict.fromkeys(("axes.edgecolor", "grid.color"), RULE),
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "text.parse_math": False,
}
Lines = Mapping[str, tuple[Sequence[float], Sequence[float]]]
"""The x and y values of each run."""


@matplotlib.rc_context(STYLE)
def curves(title: str, lines: Lines, colours: Mapping[str, str], x: str, y: str, *, is_loss: bool = False) -> str:
    """Plot one line per run; a loss that falls a lot gets a logarithmic axis."""
    figure, axes = _figure()
    for name, line in lines.items():
        xs, ys = (values[:: max(1, len(values) // MOST_POINTS)] for values in line)
        axes.plot(xs, ys, label=name, color=colours[name], linewidth=1.6, marker="o" if len(xs) < FEW else None, ms=3)
    axes.set(xlabel=x, ylabel=textwrap.fill(y, LABEL_WIDTH))
    values = [value for _, ys in lines.values() for value in ys]
    if is_loss and 0 < LARGE_RATIO * min(values) < max(values):
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    return _svg(title, figure)


@matplotlib.rc_context(STYLE)
def histogram_of_ranks(counts: Mapping[str, Int[np.ndarray, " intervals"]], colours: Mapping[str, str]) -> str:
    """Plot cross-retrieval ranks as grouped bars, in percent of all pairs."""
    names = [f"{low}" if low + 1 == high else f"{low}–{high - 1}" for low, high in pairwise(EDGES)]
    names.append(f"{EDGES[-1]}+")
    figure, axes = _figure()
    width = 0.8 / len(counts)
    for place, (name, pairs) in enumerate(counts.items()):
        x = np.arange(len(names)) + (place - (len(counts) - 1) / 2) * width
        axes.bar(x, 100 * pairs / pairs.sum(), width, label=name, color=colours[name])
    axes.set_xticks(range(len(names)), names, fontsize=8)
    axes.tick_params(axis="x", length=0)
    axes.grid(visible=False, axis="x")
    axes.set(xlabel="cross-retrieval rank", ylabel="pairs, %")
    return _svg("Cross-retrieval ranks", figure)


@matplotlib.rc_context(STYLE)
def hardness(
    title: str, negatives: Float[np.ndarray, " pairs"], positives: Float[np.ndarray, " anchors"]
) -> str | None:
    """Plot scores of listed negatives and of anchors' lowest positives; None if the table has no scores."""
    shown = [("negatives listed", PALETTE[1], _some(negatives)), ("positives", PALETTE[0], _some(positives))]
    both = np.concatenate([scores for *_, scores in shown])
    if not len(both):
        return None
    bins = np.linspace(float(both.min()), float(both.max()) or 1.0, 60).tolist()
    figure, axes = _figure()
    for name, shade, scores in shown:
        if len(scores):
            axes.hist(scores, bins, density=True, alpha=0.6, label=name, color=shade)
    axes.set(xlabel="the teacher's score", yticks=[])
    return _svg(title, figure)


def _some(scores: Float[np.ndarray, " scores"]) -> Float[np.ndarray, " some"]:
    """Keep as many finite scores as a plot needs."""
    finite = scores[np.isfinite(scores)]
    return finite[:: max(1, len(finite) // SCORES_DRAWN)]


def _figure() -> tuple[Figure, Axes]:
    figure = Figure(figsize=(5.4, 3.1), layout="constrained")
    return figure, figure.add_subplot()


def _svg(title: str, figure: Figure) -> str:
    """Render an <svg> in the page's colours, with its title for screen readers."""
    (axes,), file = figure.axes, io.StringIO()
    if len(axes.get_legend_handles_labels()[1]) > 1:  # above the axes, where it hides nothing
        figure.legend(loc="outside upper left", fontsize=9, ncols=2, borderaxespad=0.2)
    figure.savefig(file, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    drawn = file.getvalue()
    drawn = drawn[drawn.index("<svg") :].replace(INK, "currentColor").replace(RULE, "var(--rule)")
    prefix = re.sub(r"\W+", "-", title)
    drawn = re.sub(r'(id="|url\(#|href="#)', lambda match: f"{match.group(1)}{prefix}-", drawn)
    return drawn.replace("<svg ", f'<svg role="img" aria-label="{html.escape(title)}" ', 1)
