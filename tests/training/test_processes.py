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


def some_steps(pairs, sampler, every):
    cases = [(name, loss) for name, loss in CASES if every or loss == "table" or name == "vsepp"]
    cases += [(name, loss) for name in NORMED for loss in ("online", "table")]
    steps = [(drawn(pairs, sampler, loss), name, loss, None) for name, loss in cases]
    steps += [(drawn(pairs, sampler, loss), name, loss, chunk) for name, loss, chunk in CHUNKED]
    return steps + [(drawn(pairs, sampler, loss, rows), name, loss, None) for name, loss, rows in FEW]


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_every_process_takes_the_whole_step(pairs, sampler, count, tmp_path):
    cases = some_steps(pairs, sampler, every=count > 2)
    places = [(0, 1, tmp_path / "alone")] + [(rank, count, tmp_path / "together") for rank in range(count)]
    started = [SPAWN.Process(target=one_of_several, args=(*place, pairs, cases)) for place in places]
    for process in started:
        process.start()
    for process in started:
        process.join(120)
        assert process.exitcode == 0
    expected = torch.load(tmp_path / "alone" / "0.pt")[: len(cases)]
    for rank in range(count):
        *found, refusal = torch.load(tmp_path / "together" / f"{rank}.pt")
        for one, other, case in zip(expected, found, cases, strict=True):
            torch.testing.assert_close(
                one, other, rtol=1e-10, atol=1e-10, msg=lambda said, case=case: f"{case[1:]}: {said}"
            )
        assert refusal.startswith("process 1 of this training has another data than the first")
