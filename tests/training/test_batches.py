"""Batches read ahead: in order, by any number of threads; errors at their turn; no thread is left."""

import threading
import time
from contextlib import closing

import pytest

from aoq.pipeline.training.batches import read_ahead

WORKERS = [0, 1, 3]


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("batches")] == []


@pytest.mark.parametrize("workers", WORKERS)
def test_slow_and_quick_steps_come_in_order_and_an_error_when_its_step_is_due(workers):
    def make(step):
        time.sleep(0.01 * (step % 3 == 0))
        if step == 17:
            raise ValueError("row 7 is damaged; prepare it again.")
        return step

    for steps in (range(5, 17), range(0)):
        assert list(read_ahead(make, steps, workers)) == list(steps)
    taken = []
    with pytest.raises(ValueError, match=r"^row 7 is damaged; prepare it again.$"):
        taken.extend(read_ahead(make, range(9, 20), workers))
    assert taken == [*range(9, 17)]


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_who_takes_them_may_be_interrupted(workers, error):
    """The step being made is finished first, and no further one begins."""
    made = []

    def make(step):
        made.append(step)
        time.sleep(0.02)
        return step

    def take():
        with closing(read_ahead(make, range(1000), workers)) as steps:
            for step in steps:
                if step == 2:
                    raise error

    with pytest.raises(error):
        take()
    assert max(made) <= 2 + workers + 1
    count = len(made)
    time.sleep(0.05)
    assert len(made) == count
