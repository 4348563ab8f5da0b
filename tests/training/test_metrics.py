"""Windows of figures, the log and its damage, TensorBoard that may be missing, and the collapse plateau."""

import sys

import pytest
import torch

from aoq.pipeline.training.metrics import CollapseDetector, MetricsLog, read_metrics
from aoq.pipeline.training.step import Window


def test_a_line_that_is_being_written_is_not_read(tmp_path):
    log = MetricsLog(tmp_path)
    log.append(50, {"loss": 2.0})
    with log.path.open("a") as file:
        file.write('{"step": 1')
    assert read_metrics(log.path) == [{"step": 50, "loss": 2.0}]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"loss": 1.0}', "step: field required"),
        ('{"step": -1}', "step: .*greater than or equal to 0"),
        ('{"step": 1, "steps_per_second": 0}', "steps_per_second: .*greater than 0"),
        ('{"step": 1, "online": "low"}', "online: input should be a valid number"),
        ('{"step"', "Expecting"),
    ],
)
def test_a_damaged_log_is_named(tmp_path, line, message):
    path = tmp_path / "metrics.jsonl"
    path.write_text(f'{{"step": 50}}\n{line}\n')
    with pytest.raises(ValueError, match=rf"metrics.jsonl is damaged or not the log of a training \(.*{message}"):
        read_metrics(path)


def test_a_resumed_run_hides_what_it_repeats(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    for first in (1, 3):
        log = MetricsLog(tmp_path, tensorboard=True)
        for step in range(first, 6):
            log.append(step, {"loss": float(10 * first + step)})
        log.close()
    found = accumulator.EventAccumulator(str(tmp_path / "tensorboard")).Reload().Scalars("loss")
    assert [(event.step, event.value) for event in found] == [(1, 11), (2, 12), (3, 33), (4, 34), (5, 35)]


@pytest.mark.parametrize("is_installed", [False, True])
def test_without_tensorboard_training_goes_on(tmp_path, monkeypatch, caplog, is_installed):
    if is_installed:
        pytest.importorskip("tensorboard")
        (tmp_path / "tensorboard").write_text("in the way")
    else:
        monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    log = MetricsLog(tmp_path, tensorboard=True)
    for step in (1, 2):
        log.append(step, {"loss": 2.0})
    log.close()
    (warning,) = caplog.messages
    assert warning.startswith("no TensorBoard log: ")
    assert ('"aoq[tensorboard]"' in warning) != is_installed
    assert len(read_metrics(tmp_path / "metrics.jsonl")) == 2


def test_a_window_takes_figures_as_they_are_at_each_step():
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


def means(loss, gap):
    return {"retrieval_loss": loss, "plateau": 51.2, "positive_gap": gap}


def test_the_plateau_is_named_once(caplog):
    detector = CollapseDetector()
    flat = [detector.observe("online", means(51.3, 0.001), steps=50) for _ in range(10)]
    assert flat == [False] * 5 + [True] * 5
    assert caplog.text.count("plateau") == 1
    assert 'start_up = "auto"' in caplog.text
    assert not detector.observe("online", means(40.0, 0.2), steps=50)
    assert not detector.observe("online", means(51.2, 0.001), steps=50)
    assert not detector.observe("online", means(51.2, 0.2), steps=500)  # hard negatives as similar as positives
