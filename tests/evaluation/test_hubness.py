"""Scores corrected for hubs, against the inverted softmax as its papers write it."""

from __future__ import annotations

import numpy as np
import pytest

from aoq.pipeline.evaluation import hubness
from aoq.pipeline.evaluation.hubness import corrected, without_hubs
from aoq.pipeline.evaluation.retrieval import retrieval_ranks
from aoq.pipeline.mining.mine import hard_negatives
from aoq.pipeline.tables.audit import audit
from aoq.pipeline.tables.table import read_table
from tests.cli.conftest import run as aoq

TAU = 0.1


@pytest.fixture
def sides():
    rng = np.random.default_rng(0)
    images, captions = rng.normal(size=(20, 6)), rng.normal(size=(60, 6)) + 0.7  # captions share a direction
    return [side / np.linalg.norm(side, axis=1, keepdims=True) for side in (images, captions)]


def inverted(scores, bank):
    """e^(s / tau) / sum over the bank's queries of e^(s / tau); rows are queries."""
    return np.exp(scores / TAU) / np.exp(bank / TAU).sum(0)


@pytest.mark.parametrize("rows", [7, 256])
def test_both_rankings_are_those_of_the_inverted_softmax(sides, monkeypatch, rows):
    monkeypatch.setattr(hubness, "ROWS", rows)
    scores = sides[0] @ sides[1].T
    for bank, rows in ({}, slice(None)), ({"bank": 2}, [0, -1]):
        one, other = without_hubs(*sides, temperature=TAU, **bank)
        found = one.astype(np.float64) @ other.T.astype(np.float64)
        if not bank:
            assert found == pytest.approx(corrected(scores, TAU), abs=1e-6)
        for ours, given in ((found, scores), (found.T, scores.T)):
            definition = inverted(given, given[rows])
            assert np.array_equal(np.argsort(-ours, axis=1), np.argsort(-definition, axis=1))


def test_the_command_mines_corrected_cosines(sides, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, side in zip(("images", "captions"), sides, strict=True):
        np.save(f"{name}.npy", 3 * side.astype(np.float32))
    shape = ("--per-image", 3, "--h-captions", 5, "--h-images", 4)
    aoq("mine", "images.npy", "captions.npy", "table", *shape, "--hubness", TAU)
    table = read_table("table")
    assert table.manifest["teacher"]["hubness"] == TAU
    assert audit(table) == audit("table") == []
    cosines = [side.astype(np.float32) for side in sides]
    expected = hard_negatives(
        *without_hubs(*cosines, temperature=TAU), np.repeat(np.arange(20), 3), h=(5, 4), metric="dot"
    )
    for found, same in ((table.i2t, expected.i2t), (table.t2i, expected.t2i)):
        assert np.array_equal(found.negative_ids, same.negative_ids)
        assert found.scores == pytest.approx(same.scores, abs=1e-6)
    shown = aoq("stats", "table").stdout
    assert "relative_margin = " not in shown
    assert shown.endswith("scores are corrected for hubs: screen with absolute_margin instead of relative_margin\n")
    with pytest.raises(ValueError, match="are corrected for hubs, so use absolute_margin"):
        table.screen(relative_margin=0.05)
    result = aoq("mine", "images.npy", "alone", "--unpaired", "--h-captions", 5, "--hubness", TAU, code=1)
    assert "these vectors are one set; leave it out" in result.stderr


def test_a_matrix_is_corrected_in_place_of_another(sides):
    scores = (sides[0] @ sides[1].T).astype(np.float32)
    into = np.empty_like(scores)
    assert corrected(scores, TAU, into) is into
    ranks = retrieval_ranks(into, np.repeat(np.arange(20), 3))
    assert ranks.i2t.shape == (20,)


def test_wrong_vectors_and_numbers_are_refused(sides):
    images, captions = sides
    for wrong in ({"temperature": 0.0}, {"temperature": np.nan}, {"temperature": np.inf}, {"bank": 0}):
        with pytest.raises(ValueError, match="both must be positive and finite"):
            without_hubs(images, captions, **wrong)
    for other in (captions[:, :3], captions[:0], captions[0]):
        with pytest.raises(ValueError, match=r"have shapes \(20, 6\) and .*; give rows of one length\.$"):
            without_hubs(images, other)
    with pytest.raises(ValueError, match="a vector is not finite"):
        without_hubs(images * np.nan, captions)
