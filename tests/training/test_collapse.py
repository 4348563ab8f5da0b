"""Noticing that every pair has become equally similar."""

from __future__ import annotations

import logging

from aoq.pipeline.training.collapse import CollapseDetector


def test_the_plateau_is_named_once(caplog):
    caplog.set_level(logging.WARNING)
    detector = CollapseDetector()
    flat = [detector.observe("online", 51.3, 51.2, gap=0.001, steps=50) for _ in range(10)]
    assert flat == [False] * 5 + [True] * 5
    assert caplog.text.count("plateau") == 1
    assert 'start_up = "auto"' in caplog.text
    assert not detector.observe("online", 40.0, 51.2, gap=0.2, steps=50)
    assert not detector.observe("online", 51.2, 51.2, gap=0.001, steps=50)


def test_hard_negatives_as_similar_as_positives_are_no_collapse():
    detector = CollapseDetector()
    assert not any(detector.observe("online", 51.2, 51.2, gap=0.2, steps=50) for _ in range(20))
