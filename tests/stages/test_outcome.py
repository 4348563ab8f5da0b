"""After a training the log says whether anything was learnt, and how hard the offline negatives were."""

from __future__ import annotations

import logging

import pytest

from aoq.pipeline.data.folder import open_split
from aoq.pipeline.evaluation.ranks import chance_of
from aoq.pipeline.stages.train import report_outcome


@pytest.mark.parametrize("stage", ["first_round", "second_round"])
def test_a_training_at_chance_warns_once(make, caplog, stage):
    chain = make("own", "mining", more="seed = 9")  # which no other test makes
    if stage == "second_round":
        caplog.clear()
        make("own", stage, more="seed = 9")
    dev = open_split(chain.folder, "dev")
    reached = chain[stage].manifest()["metrics"]["rsum"]
    warnings = [one for one in caplog.records if f"dev rsum {reached:.1f} is near chance (239.2)" in one.message]
    assert chance_of(dev.image_of).explains(reached), "a step or two teach nothing"
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
