"""The metrics log: lines in order, rewound to a checkpoint, and TensorBoard that may be missing."""

from __future__ import annotations

import sys

import pytest

from aoq.pipeline.training.metrics import MetricsLog, read_metrics


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


def test_tensorboard_gets_the_numbers(tmp_path):
    pytest.importorskip("tensorboard")
    log = MetricsLog(tmp_path, tensorboard=True)
    log.append(50, {"loss": 2.0, "loss_name": "online"})
    log.close()
    assert list((tmp_path / "tensorboard").glob("events.*"))


def test_a_resumed_run_hides_what_it_repeats(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    for first in (1, 3):
        log = MetricsLog(tmp_path, tensorboard=True)
        for step in range(first, 6):
            log.append(step, {"loss": float(10 * first + step)})
        log.close()
    found = accumulator.EventAccumulator(str(tmp_path / "tensorboard")).Reload().Scalars("loss")
    assert [(event.step, event.value) for event in found] == [(1, 11), (2, 12), (3, 33), (4, 34), (5, 35)]


def test_without_room_for_tensorboard_training_goes_on(tmp_path, caplog):
    pytest.importorskip("tensorboard")
    (tmp_path / "tensorboard").write_text("in the way")
    log = MetricsLog(tmp_path, tensorboard=True)
    for step in (1, 2):
        log.append(step, {"loss": 2.0})
    assert [record.getMessage().startswith("no TensorBoard log: ") for record in caplog.records] == [True]
    assert "pip install" not in caplog.text


def test_without_tensorboard_training_goes_on(tmp_path, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    log = MetricsLog(tmp_path, tensorboard=True)
    log.append(50, {"loss": 2.0})
    log.close()
    assert '"aoq[tensorboard]"' in caplog.text
    assert read_metrics(tmp_path / "metrics.jsonl")
