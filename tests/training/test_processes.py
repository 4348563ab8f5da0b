"""Several processes take the step of one: the same figures, gradients and buffers on every one of them."""

from __future__ import annotations

import multiprocessing

import pytest
import torch

from tests.training.steps import CASES, NORMED, ROWS, drawn, one_of_several

SPAWN = multiprocessing.get_context("spawn")
CHUNKED = [("scan", "table", 2), ("naaf", "learnt", 1)]
FEW = [("scan", "table", ROWS[:1]), ("vsepp", "learnt", ROWS[:3]), ("sgr", "table", ROWS[:3])]
"""Too few pairs for some numbers of processes."""


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_every_process_takes_the_whole_step(pairs, sampler, count, tmp_path):
    cases = [(name, loss, None, ROWS) for name, loss in CASES if count > 2 or loss == "table" or name == "vsepp"]
    cases += [(name, "table", None, ROWS) for name in NORMED]
    cases += [(name, loss, chunk, ROWS) for name, loss, chunk in CHUNKED]
    cases += [(name, loss, None, rows) for name, loss, rows in FEW]
    steps = [(drawn(pairs, sampler, loss, rows), name, loss, chunk) for name, loss, chunk, rows in cases]
    ranks = [(rank, count, tmp_path, pairs, steps) for rank in range(count)]
    started = [SPAWN.Process(target=one_of_several, args=given) for given in ranks]
    for process in started:
        process.start()
    for process in started:
        process.join(120)
        assert process.exitcode == 0
    expected = torch.load(tmp_path / "alone.pt")
    for rank in range(count):
        *results, refusal = torch.load(tmp_path / f"{rank}.pt")
        for one, other, case in zip(expected, results, cases, strict=True):
            explain = lambda message, case=case: f"{case}: {message}"  # noqa: E731
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10, msg=explain)
        assert refusal.startswith("process 1 of this training has another data than the first")
