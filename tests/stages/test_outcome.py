"""After a training it is said whether anything was learnt, and how its table could give more."""

from __future__ import annotations

import logging

import pytest

from aoq.pipeline.config.load import load_experiment
from aoq.pipeline.data.folder import open_split
from aoq.pipeline.evaluation.chance import chance_of
from aoq.pipeline.stages.train import remedies, report_outcome

HARDER, ANEW, SMALLER = "harder ones ([sampling] hardness", "those that this model finds itself", "a smaller batch"


@pytest.mark.parametrize("stage", ["first_round", "second_round"])
def test_a_training_at_chance_is_told_so_once(make, caplog, stage):
    chain = make("own", "mining", more="seed = 9")  # which no other test makes
    if stage == "second_round":
        caplog.clear()
        make("own", stage, more="seed = 9")
    dev = open_split(chain.folder, "dev")
    reached = chain[stage].manifest()["metrics"]["rsum"]
    said = [record for record in caplog.records if f"dev rsum {reached:.1f} is near chance (239.2)" in record.message]
    assert chance_of(dev.image_of).explains(reached), "a step or two teach nothing"
    assert len(said) == 1
    assert said[0].levelno == logging.WARNING
    assert f"`aoq data check {chain.folder}`" in said[0].message


def test_who_learnt_nothing_is_not_advised_about_the_table(make, caplog):
    caplog.set_level("INFO")
    chain = make("own")
    dev, training = open_split(chain.folder, "dev"), chain.experiment.student
    report_outcome(chain, training, {"metrics": {"rsum": 240.0}, "offline_harder_by_epoch": [0.5, 0.14]}, dev)
    assert 'train with start_up = "auto", or longer' in caplog.text
    assert "in the last epoch, 14% of the offline negatives were harder" in caplog.text
    assert "adds little" not in caplog.text
    caplog.clear()
    paced = training.model_copy(update={"start_up": "auto"})
    report_outcome(chain, paced, {"metrics": {"rsum": 240.0}}, dev)
    assert caplog.text.strip().endswith("if so, train longer.")
    caplog.clear()
    report_outcome(chain, training, {"metrics": {"rsum": 500.0}, "offline_harder_by_epoch": [0.5, 0.14]}, dev)
    assert "near chance" not in caplog.text
    assert "the table adds little to its batches" in caplog.text
    caplog.clear()
    report_outcome(chain, training, {"metrics": {"rsum": 500.0}, "offline_harder_by_epoch": [0.14, 0.5]}, dev)
    assert "50% of the offline negatives" in caplog.text
    assert "adds little" not in caplog.text


@pytest.mark.parametrize(
    ("experiment", "changes", "advised"),
    [
        ("f8k_scan", "", [HARDER, SMALLER]),
        ("f8k_scan", 'sampling.hardness="auto"', [SMALLER]),
        ("f8k_vsepp", "", [ANEW, SMALLER]),
        ("f8k_vsepp", "refresh.rounds=1", [SMALLER]),
    ],
)
def test_only_what_is_possible_and_not_yet_done_is_advised(experiment, changes, advised):
    found = list(remedies(load_experiment(experiment, changes)))
    assert len(found) == len(advised)
    assert all(remedy.startswith(start) for remedy, start in zip(found, advised, strict=True))
