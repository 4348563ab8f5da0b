"""Agreement with people."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from aoq.pipeline.data.annotations import ScoredPairs
from aoq.pipeline.evaluation.annotated import agreement


def test_correlations_and_errors_that_are_none():
    similarity = np.array([[0.9, 0.8, 0.1], [0.2, 0.3, 0.4], [0.1, 0.2, 0.3]])
    image_of = np.array([0, 1, 2])  # captions 1 and 2 find images 0 and 1
    pairs = np.array([[0, 0, 4.0], [0, 1, 3.0], [0, 1, 4.0], [1, 2, 1.0], [2, 2, 2.0]])
    judged = ScoredPairs(pairs[:, 0].astype(np.int64), pairs[:, 1].astype(np.int64), pairs[:, 2])
    found = agreement(similarity, image_of, judged)
    # scores 0.9, 0.8, 0.4, 0.3 beside means of 4, 3.5, 1, 2: one of six pairs is discordant
    assert found["kendall"] == pytest.approx(100 * 4 / 6)
    assert found["spearman"] == pytest.approx(100 * (1 - 6 * 2 / (4 * 15)))
    assert (found["judged"], found["false_hits"], found["right_share"]) == (4, 2, 50.0)


def test_equal_scores_correlate_with_nothing():
    judged = ScoredPairs(np.array([0, 1]), np.array([0, 1]), np.array([2.0, 2.0]))
    with pytest.raises(ValueError, match="nothing to correlate"):
        agreement(np.eye(2), np.array([0, 1]), judged)


def test_without_scipy_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.stats", None)
    judged = ScoredPairs(np.array([0, 1]), np.array([0, 1]), np.array([0.0, 1.0]))
    with pytest.raises(ImportError, match=r'judgements needs scipy .*`pip install "aoq\[eccv\]"`'):
        agreement(np.array([[0.1, 0.2], [0.3, 0.4]]), np.array([0, 1]), judged)
