"""The ranks that a student draws are set beside the rank of a batch's hardest negative."""

from __future__ import annotations

import numpy as np
import pytest

from aoq.pipeline.config.tables import Sampling
from aoq.pipeline.training.drawable import DrawnRanks, drawn_ranks

AUTO = Sampling(hardness="auto")
SIZES = {"depth": 300, "candidates": 30_000, "batch": 64}


@pytest.mark.parametrize(
    ("sampling", "changed", "expected"),
    [
        (Sampling(), {}, (0, 300)),
        (Sampling(h_captions=60, h_images=9), {}, (0, 60)),
        (Sampling(hardness=15.0), {}, (0, 31)),
        (Sampling(hardness=15.0, hardest=150.0), {}, (3, 31)),
        (Sampling(hardness=1.0), {}, (0, 300)),
        (AUTO, {}, (0, 47)),  # 30,000 / (64 * 10)
        (AUTO, {"depth": 20}, (0, 20)),
        (AUTO, {"candidates": 500}, (0, 4)),
        (AUTO, {"candidates": 500, "depth": 3}, (0, 3)),
    ],
)
def test_lists_are_cut_by_what_a_batch_finds(sampling, changed, expected):
    found = drawn_ranks(sampling, "i2t", **{**SIZES, **changed})
    assert (found.start, found.stop) == expected


def test_each_direction_has_its_own_head():
    assert drawn_ranks(Sampling(h_captions=60, h_images=9), "t2i", **SIZES).stop == 9


@pytest.mark.parametrize(("left", "stop"), [(1, 47), (2, 93), (300, 300)])
def test_what_a_screen_takes_is_made_up_for_further_down(left, stop):
    """The slow definition: the first rank up to which an average list has 47 negatives left, here one of `left`."""
    may_draw = (np.arange(300) + np.arange(40)[:, None]) % left == 0
    may_draw &= left < 300
    assert drawn_ranks(AUTO, "i2t", **SIZES, left=may_draw).stop == stop
    assert stop == next((rank for rank in range(1, 301) if may_draw[:, :rank].sum(axis=1).mean() >= 46.5), 300)


@pytest.mark.parametrize(
    ("start", "stop", "candidates", "end"),
    [
        (3, 31, 30_000, "draws from ranks 4 to 31: about 15 times harder"),  # a batch finds rank 469
        (0, 60, 600, "draws from the first 60: about 84% of them are easier"),  # 1 - 9.375 / 60
        (0, 1, 3, "draws from the first 1: no harder"),  # no rank is before the first
        (10, 60, 1280, "draws from ranks 11 to 60: about 80% of them are easier"),  # ranks 21 to 60
    ],
)
def test_draws_are_set_beside_a_batch(start, stop, candidates, end):
    assert str(DrawnRanks("t2i", start, stop, candidates, batch=64)).endswith(end)
