"""Plots of what may be missing."""

import numpy as np

from aoq.pipeline.report.plots import curves, hardness

NONE = np.empty(0, np.float32)


def test_a_table_without_scores_has_no_plot_and_one_without_positives_has():
    scores = np.array([0.2, 0.3], np.float32)
    assert hardness("Scores", NONE, NONE) is None
    plot = hardness("Scores", scores, NONE)
    assert "positives" not in plot
    assert "positives" in hardness("Scores", scores, scores)


def test_names_are_text():
    name = '<script>"x"</script> & $y$'
    plot = curves(
        name, {name: ([1.0, 2.0], [3.0, 4.0]), "other": ([1.0], [2.0])}, {name: "#000", "other": "#111"}, "x", name
    )
    assert "<script>" not in plot
    assert "&lt;script&gt;" in plot


def test_a_loss_that_falls_by_much_has_a_logarithmic_axis_with_plain_numbers():
    lines = {"run": ([0.0, 1.0, 2.0], [1600.0, 120.0, 15.0])}
    for is_loss in (False, True):
        plot = curves("loss", lines, {"run": "#000"}, "steps", "loss", is_loss=is_loss)
        assert (">100</text>" in plot) == is_loss
        assert "math" not in plot
