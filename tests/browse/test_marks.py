"""Marks of several markers are merged, and their agreement is measured."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import cohen_kappa_score

from aoq.pipeline.browse.marks import Marks, Matches, agreement_on
from aoq.pipeline.tables.screens.judgements import read_judgements


def marks_of(folder, marker):
    return Marks(Matches(folder / "m.csv", 8, 30), marker)


def test_each_marker_has_a_judgement_of_their_own(tmp_path):
    ann, bob = marks_of(tmp_path, "ann"), marks_of(tmp_path, 'bob, "the" second')
    ann.say(1, 2, True, "/")
    ann.say(3, 4, False, "/")
    bob.say(3, 4, False, "/")
    assert [ann.counts(), bob.counts()] == [(1, 1), (0, 1)]
    assert [bob.of(1, 2), bob.of(3, 4), bob.of(5, 6)] == [True, False, None]  # what is known to match is for all
    judged = read_judgements(tmp_path / "m.marks.csv", 8, 30)
    assert judged.pairs.tolist() == [[1, 2], [3, 4]]
    assert judged.probabilities.tolist() == [1.0, 0.0]
    ann.say(1, 2, None, "/")
    assert ann.counts() == (0, 1)
    assert (1, 2) not in ann.matches


def test_what_another_server_writes_is_kept(tmp_path):
    one, other = marks_of(tmp_path, "ann"), marks_of(tmp_path, "bob")
    for n in range(6):
        (one if n % 2 else other).say(n, n, bool(n % 3), "/")
    assert one.counts() == (2, 1)
    assert other.counts() == (2, 1)


def test_agreement_is_cohens_kappa():
    rng = np.random.default_rng(0)
    for _ in range(20):
        marks = rng.integers(0, 2, (12, 2))
        same, kappa = agreement_on([(bool(ours), bool(theirs)) for ours, theirs in marks])
        assert same == pytest.approx((marks[:, 0] == marks[:, 1]).mean())
        assert kappa == pytest.approx(cohen_kappa_score(*marks.T))
    assert agreement_on([(True, True)]) == (1, None)


def test_markers_that_share_pairs_are_compared(tmp_path, browse):
    assert "No two markers" in browse.text("/agreement")
    bob = Marks(browse.matches, "bob")
    for pair, ours, theirs in (((1, 30), True, True), ((1, 31), False, True), ((2, 40), False, False)):
        browse.marks.say(*pair, ours, "/")
        bob.say(*pair, theirs, "/")
    bob.say(3, 60, True, "/")
    page = browse.text("/agreement")
    assert "<td>ann, bob</td><td>3</td><td>66.7</td><td>0.40</td>" in page


def test_a_damaged_file_is_named(tmp_path):
    (tmp_path / "m.marks.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match=r"m\.marks\.csv is damaged or not marks"):
        marks_of(tmp_path, "ann")
