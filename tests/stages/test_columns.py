"""A student that trains on several offline negatives an anchor, from the table and its screen to the weights."""

from __future__ import annotations

import pytest

from tests.stages.conftest import lines_with

SCREENED = "screen.near_text = 0.4\nsampling = {{negatives = 6{}}}"


@pytest.mark.parametrize("loss", ["infonce", "adapinfonce", "sigmoid", "offtri", "onlinequin"])
def test_a_student_trains_on_shared_and_own_columns_of_a_screened_table(make, loss, caplog):
    caplog.set_level("INFO")
    plain = make("plain", "mining", loss=loss)
    losses = []
    for name, option in (("shared", ""), ("own", ', columns = "own"')):
        chain = make(name, "screen", "second_round", loss=loss, more=SCREENED.format(option))
        assert chain["hard_negatives"].key == plain["hard_negatives"].key
        assert chain["control"].key == plain["control"].key
        assert chain["second_round"].key != plain["second_round"].key
        losses.append(lines_with("retrieval_loss", chain))
    assert all(shared > own for shared, own in zip(*losses, strict=True))  # of more negatives, or a harder one
    assert "t2i: the shortest list has 4 negatives, and 6 are drawn: short lists have fewer terms" in caplog.text
