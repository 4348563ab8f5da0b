"""The metrics log: lines in order, rewound to a checkpoint, and TensorBoard that may be missing."""

from __future__ import annotations

import sys

import pytest

from aoq.pipeline.training.metrics import MetricsLog, Window, read_metrics


def test_rewinding_drops_what_came_after(tmp_path):
    log = MetricsLog(tmp_path / "metrics.jsonl")
    assert log.position == 0
    log.append(50, {"loss": 2.0})
    position = log.position
    log.append(100, {"loss": 1.0})
    log.rewind(position)
    log.append(100, {"loss": 1.5})
    assert read_metrics(tmp_path / "metrics.jsonl") == [{"step": 50, "loss": 2.0}, {"step": 100, "loss": 1.5}]


def test_a_window_averages_its_steps():
    window = Window()
    window.add({"loss": 1.0, "weight": 3.0})
    window.add({"loss": 2.0, "weight": 5.0})
    assert window.steps == 2
    assert window.means() == {"loss": 1.5, "weight": 4.0}


def test_tensorboard_gets_the_numbers(tmp_path):
    pytest.importorskip("tensorboard")
    log = MetricsLog(tmp_path / "metrics.jsonl", tmp_path / "tensorboard")
    log.append(50, {"loss": 2.0, "loss_name": "online"})
    log.close()
    assert list((tmp_path / "tensorboard").glob("events.*"))


def test_without_tensorboard_training_goes_on(tmp_path, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    log = MetricsLog(tmp_path / "metrics.jsonl", tmp_path / "tensorboard")
    log.append(50, {"loss": 2.0})
    log.close()
    assert '"aoq[tensorboard]"' in caplog.text
    assert read_metrics(tmp_path / "metrics.jsonl")
