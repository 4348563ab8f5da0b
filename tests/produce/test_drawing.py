"""Training warns first of a table that was measured to gain nothing."""

from __future__ import annotations

import pytest

from aoq.pipeline.config.load import load_experiment
from aoq.pipeline.produce.drawing import cautions

LOGITS = 'second_round.loss={name="infonce"}, second_round.start_up="auto"'


@pytest.mark.parametrize(
    ("experiment", "changes", "caution"),
    [
        ("f8k_vsepp", "", "'vsepp' compares one vector with one"),
        ("f8k_vsepp", LOGITS + ', sampling.hardness="auto"', "loss 'infonce' on the hardest ranks"),
        ("f8k_vsepp", LOGITS, None),
        ("f8k_scan", "", None),
        ("demo", "", None),
    ],
)
def test_what_was_measured_to_gain_nothing_is_said_before_one_trains(experiment, changes, caution):
    said = list(cautions(load_experiment(experiment, changes)))
    assert len(said) == (caution is not None)
    assert all(line.startswith(caution) for line in said)
