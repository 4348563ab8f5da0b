"""The metrics log: lines in order, rewound to a checkpoint, and TensorBoard that may be missing."""

from __future__ import annotations

import sys

import pytest
import torch

from aoq.pipeline.training.metrics import MetricsLog, Window, read_metrics


def test_rewinding_drops_what_came_after(tmp_path):
    log = MetricsLog(tmp_path)
    assert log.position == 0
    log.append(50, {"loss": 2.0})
    position = log.position
    log.append(100, {"loss": 1.0})
    log.rewind(position)
    log.append(100, {"loss": 1.5})
    assert read_metrics(tmp_path / "metrics.jsonl") == [{"step": 50, "loss": 2.0}, {"step": 100, "loss": 1.5}]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("null", "the whole"),
        ('{"loss": 1.0}', "step: field required"),
        ('{"step": -1}', "step: .*greater than or equal to 0"),
        ('{"step": 1, "steps_per_second": 0}', "steps_per_second: .*greater than 0"),
        ('{"step": 1, "online": "low"}', "online: input should be a valid number"),
        ('{"step": 1, "loss": 1e999}', "1e999 is not finite"),
        ('{"step"', "Expecting"),
    ],
)
def test_a_damaged_log_is_named(tmp_path, line, message):
    path = tmp_path / "metrics.jsonl"
    path.write_text(f'{{"step": 50}}\n{line}\n')
    with pytest.raises(ValueError, match=rf"metrics.jsonl is damaged or not the log of a training \(.*{message}"):
        read_metrics(path)


def test_a_line_that_is_being_written_is_not_read(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 50}\n{"step": 1')
    assert read_metrics(path) == [{"step": 50}]


def test_a_window_averages_its_steps():
    window = Window()
    window.add({"loss": 1.0, "weight": 3.0})
    window.add({"loss": 2.0, "weight": 5.0})
    assert window.steps == 2
    assert window.means() == {"loss": 1.5, "weight": 4.0}


def test_a_window_takes_figures_that_stay_on_their_device_as_they_are_at_each_step():
    """The same means as of numbers; what is learnt goes on changing; some figures come with some steps only."""
    by_number, by_tensor, learnt = Window(), Window(), torch.zeros(())
    for step in range(7):
        learnt += 0.1
        numbers = {"loss": 1 / (step + 1), "temperature": float(learnt)} | ({"noisy": 3.0} if step > 4 else {})
        by_number.add({**numbers, "share": 0.1 * step})
        tensors = {name: torch.tensor(value, dtype=torch.float64) for name, value in numbers.items()}
        by_tensor.add({**tensors, "temperature": learnt, "share": 0.1 * step})
        assert list(by_tensor.means()) == ["loss", "temperature", "share", "noisy"][: 4 if step > 4 else 3]
    assert by_tensor.means() == by_number.means()


def test_tensorboard_gets_the_numbers(tmp_path):
    pytest.importorskip("tensorboard")
    log = MetricsLog(tmp_path, tensorboard=True)
    log.append(50, {"loss": 2.0, "loss_name": "online"})
    log.close()
    assert list((tmp_path / "tensorboard").glob("events.*"))


def test_without_tensorboard_training_goes_on(tmp_path, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    log = MetricsLog(tmp_path, tensorboard=True)
    log.append(50, {"loss": 2.0})
    log.close()
    assert '"aoq[tensorboard]"' in caplog.text
    assert read_metrics(tmp_path / "metrics.jsonl")
