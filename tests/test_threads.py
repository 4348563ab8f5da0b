"""Rows shared by threads."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from aoq.pipeline import engine
from aoq.pipeline.engine import in_parallel


@pytest.mark.parametrize("number", [1, 3])
def test_what_any_thread_raises_is_raised(monkeypatch, number):
    monkeypatch.setattr(engine, "thread_count", lambda: number)

    def fail(start, stop):
        if stop == 3:
            raise MemoryError("a part")

    with pytest.raises(MemoryError, match="a part"):
        in_parallel(fail, 3, parts=3)


@pytest.mark.parametrize(("count", "number"), [(0, 2), (1, 3), (100, 1), (100, 3)])
def test_every_row_is_taken_once(monkeypatch, count, number):
    monkeypatch.setattr(engine, "thread_count", lambda: number)
    taken = np.zeros(count, int)
    in_parallel(lambda start, stop: np.add.at(taken, slice(start, stop), 1), count)
    assert (taken == 1).all()


def test_threads_sleep_from_torchs_import_on():
    """OpenMP reads the variable then, and threads that spin slow down all other work."""
    start = "from aoq.pipeline.cli import main; main.make_context('aoq', ['list'])"
    for code in ("import tasks", start):
        show = f"{code}; import os, sys; print(os.environ.get('OMP_WAIT_POLICY'), 'torch' in sys.modules)"
        shown = subprocess.run([sys.executable, "-c", show], capture_output=True, text=True, check=True).stdout
        assert shown == "passive False\n"
