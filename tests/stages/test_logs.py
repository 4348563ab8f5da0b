"""The log says how hard a student's draws are, whether anything was learnt, and what the table added."""

import logging
from dataclasses import replace

import numpy as np
import pytest

from aoq.pipeline.data.folder import open_split
from aoq.pipeline.evaluation.ranks import chance_level
from aoq.pipeline.stages import draws
from aoq.pipeline.stages.draws import forecast, open_student_table
from aoq.pipeline.stages.train import report_outcome

SIZES, DEPTHS = (40, 200), {"i2t": 9, "t2i": 4}


def test_the_log_before_a_training_has_the_sentences_of_an_estimate(make, caplog):
    caplog.set_level("INFO")
    own = {"more": "seed = 8"}  # which no other test makes
    before = list(forecast(make("own", **own), SIZES, DEPTHS))
    chain = make("own", "mining", **own)
    sentences = list(forecast(chain, SIZES, DEPTHS))
    make("own", "second_round", **own)
    assert [caplog.messages.count(sentence) for sentence in sentences] == [1, 1]  # one per direction
    assert all(sentence.startswith(early) for sentence, early in zip(sentences, before, strict=True))


def test_negatives_that_score_as_high_as_the_lowest_own_pair_are_counted(make, monkeypatch):
    """Three of four do."""
    chain = make("own", "mining")
    table, _ = open_student_table(chain)
    lists = {}
    for direction in DEPTHS:
        scores = table[direction].scores.copy()
        scores[:] = np.where(np.arange(scores.shape[1]) % 4 == 3, 0.1, 0.6)
        lists[direction] = replace(table[direction], scores=scores, positive_score=np.full(len(scores), 0.6, "f4"))
    weak = replace(table, **lists)
    monkeypatch.setattr(draws, "open_student_table", lambda chain: (weak, None))
    i2t, t2i = forecast(chain, SIZES, DEPTHS)
    part = "of them at least as high as the anchor's lowest positive"
    assert i2t.endswith(f"the teacher scores 77.8% {part}")
    assert t2i.endswith(f"the teacher scores 75.0% {part}")


def test_a_screens_doubts_go_before_the_teachers(make):
    prior = "screen = {same_text = true, match_prior = 0.01}"
    chain = make("own", "mining", "screen", more=prior)
    (table, view), (i2t, _) = open_student_table(chain), forecast(chain, SIZES, DEPTHS)
    mean = view.i2t.suspicion[table.i2t.negative_ids >= 0].mean()
    assert i2t.endswith(f"suspected by the screen, whose suspicion is {mean:.1%} on average")
    assert "the teacher scores" not in i2t


def test_a_screen_that_drops_every_negative_is_refused(make):
    with pytest.raises(ValueError, match=r"every list would be empty; loosen those of \[screen\]"):
        make("own", "mining", "screen", more="screen = {relative_margin = 5.0}")


@pytest.mark.parametrize("stage", ["first_round", "second_round"])
def test_a_training_at_chance_warns_once(make, caplog, stage):
    chain = make("own", "mining", more="seed = 9")  # which no other test makes
    if stage == "second_round":
        caplog.clear()
        make("own", stage, more="seed = 9")
    dev = open_split(chain.folder, "dev")
    reached = chain[stage].manifest()["metrics"]["rsum"]
    warnings = [one for one in caplog.records if f"dev rsum {reached:.1f} is near chance (239.2)" in one.message]
    assert chance_level(dev.image_of).explains(reached), "a step or two teach nothing"
    assert len(warnings) == 1
    assert warnings[0].levelno == logging.WARNING
    assert f"`aoq data check {chain.folder}`" in warnings[0].message


@pytest.mark.parametrize(
    ("reached", "harder", "start_up", "logged"),
    [
        (240.0, [0.5, 0.14], None, ['train with start_up = "auto", or longer', "14% of the offline negatives"]),
        (240.0, [], "auto", ["if so, train longer."]),
        (500.0, [0.5, 0.14], None, ["14% of the offline negatives", "the table adds little to its batches"]),
        (500.0, [0.14, 0.5], None, ["50% of the offline negatives"]),
    ],
)
def test_a_table_adds_little_unless_nothing_was_learnt(make, caplog, reached, harder, start_up, logged):
    caplog.set_level("INFO")
    chain = make("own")
    dev, training = open_split(chain.folder, "dev"), chain.experiment.student.model_copy(update={"start_up": start_up})
    report_outcome(chain, training, {"metrics": {"rsum": reached}, "offline_harder_by_epoch": harder}, dev)
    parts = ["train with", "if so, train longer", "14% of the", "50% of the", "adds little"]
    assert [part for part in parts if part in caplog.text] == [p for p in parts if any(p in one for one in logged)]
    assert all(one in caplog.text for one in logged)
