"""The interval of a recall is Wilson's, and the breadth is nearly the least whose recall is surely enough."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aoq.pipeline.search.recall import NORMAL_QUANTILE, STEP, choose_breadth, wilson_interval


@given(recall=st.floats(0, 1), sampled=st.integers(1, 2000))
def test_the_ends_of_wilsons_interval_are_the_extreme_proportions(recall, sampled):
    """The ends are the proportions whose normal deviation from what was seen is exactly the quantile."""
    for end in wilson_interval(recall, sampled, 10**6):
        deviation = abs(recall - end)
        assert deviation == pytest.approx(NORMAL_QUANTILE * np.sqrt(end * (1 - end) / sampled), abs=1e-7)


def test_of_all_anchors_the_recall_is_known():
    assert wilson_interval(0.7, 20, 20) == (0.7, 0.7)


@given(enough=st.integers(1, 600), widest=st.integers(1, 600), beyond=st.integers(0, 599))
def test_the_breadth_is_nearly_the_least_that_is_enough(enough, widest, beyond):
    """And wider than the breadth that was not enough."""
    widest = max(widest, beyond + 1)
    asked = []

    def measure(breadth):
        asked.append(breadth)
        return np.full(50, 0.96 if breadth >= enough else 0.94)

    if widest < enough:
        with pytest.raises(ValueError, match=rf"toy\|b={widest} finds 94.0% at its widest, and 95.0% are wanted"):
            choose_breadth("toy|b", widest, measure, 0.95, 1000, beyond)
        return
    found = choose_breadth("toy|b", widest, measure, 0.95, 1000, beyond)
    assert max(enough, beyond + 1) <= found <= max(STEP * enough, STEP * beyond + 1)
    assert min(asked) > beyond
    assert len(asked) == len(set(asked))


def test_the_recall_of_the_sample_is_enough_by_three_standard_errors():
    """Two samples, the other half as large, differ by sqrt(3) times the standard error of the first."""
    rng, everyone = np.random.default_rng(0), np.repeat([0.8, 1.0], 200)
    error = float(np.std([rng.choice(everyone, 100, replace=False).mean() for _ in range(4000)]))
    sample = {1: np.repeat([0.8, 1.0], 50), 2: np.ones(100)}
    margin = 3 * 3**0.5 * error
    for wanted, chosen in ((0.9 - 1.05 * margin, 1), (0.9 - 0.95 * margin, 2)):
        assert choose_breadth("toy|b", 2, sample.get, wanted, 400) == chosen
    assert choose_breadth("toy|b", 2, sample.get, 0.9, 100) == 1  # of all anchors the recall is known
