"""Self-paced hardness against loops and bisection; a collapsed model always finds the way up."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from aoq.pipeline.config.losses import LossSection
from aoq.pipeline.losses import LOSSES, pace
from aoq.pipeline.losses.aoq import online_triplet
from aoq.pipeline.losses.hinge import NO_NEGATIVE, online_negative
from aoq.pipeline.losses.pace import BEARABLE, LEVELS, TOP, Pace, bearable_level, hardness_at
from aoq.pipeline.losses.similarities import OfflineSimilarities, Similarities
from tests.losses.definitions import numbers_of
from tests.losses.test_aoq import similarities

MARGIN = 0.2
ONLINE = partial(online_triplet, margin=MARGIN)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), size=st.integers(2, 9), hardness=st.sampled_from([0.0, 0.7, 5.0, 300.0, math.inf]))
def test_online_negatives_are_the_weighed_means_of_loops(seed, size, hardness):
    """The weights have no gradient; a hardness that stays on its device is the same number."""
    rng = np.random.default_rng(seed)
    matrix = torch.from_numpy(rng.uniform(-1, 1, (size, size))).requires_grad_()
    is_positive = similarities(matrix, torch.from_numpy(rng.integers(0, max(2, size // 2), size))).is_positive
    numbers = hardness, torch.tensor(hardness, dtype=torch.float64)
    found, on_device = (online_negative(matrix, is_positive, hardness=one) for one in numbers)
    gradient, again = (torch.autograd.grad(one.sum(), matrix)[0] for one in (found, on_device))
    assert torch.equal(on_device, found)
    assert torch.equal(again, gradient)
    for row, similarity in enumerate(found.tolist()):
        negatives = matrix[row][~is_positive[row]].tolist()
        if not negatives:
            assert similarity == NO_NEGATIVE
            continue
        highest = max(negatives)
        hardest = math.isinf(hardness)
        weights = [float(s == highest) if hardest else math.exp(hardness * (s - highest)) for s in negatives]
        mean = sum(w * s for w, s in zip(weights, negatives, strict=True)) / sum(weights)
        assert similarity == pytest.approx(mean, abs=1e-6)
        assert gradient[row][~is_positive[row]].tolist() == pytest.approx([w / sum(weights) for w in weights], abs=1e-6)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), size=st.integers(2, 40), gap=st.floats(-0.3, 1.0), spread=st.floats(0.0, 0.5))
def test_the_level_is_the_highest_that_the_batch_can_bear(seed, size, gap, spread):
    rng = np.random.default_rng(seed)
    matrix = torch.from_numpy(spread * rng.normal(size=(size, size)) + gap * np.eye(size))
    pairs = similarities(matrix)

    def cost(level):
        hardness = LEVELS[level] / MARGIN
        of_negatives = [online_negative(m, pairs.is_positive, hardness=hardness) for m in (matrix, matrix.T)]
        return sum(
            max(0.0, MARGIN - float(matrix[row, row]) + float(negatives[row]))
            for negatives in of_negatives
            for row in range(size)
        ) / (2 * size * MARGIN)

    level = float(bearable_level(ONLINE, pairs, margin=MARGIN))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pace, "SYNCHRONOUS", ())  # as on a device
        assert float(bearable_level(ONLINE, pairs, margin=MARGIN)) == level
    bearable = [whole for whole in range(TOP + 1) if cost(whole) <= BEARABLE]
    if not bearable:
        assert level == 0
    elif len(bearable) == TOP + 1:
        assert level == TOP
    else:
        first = next(whole for whole in range(TOP + 1) if whole not in bearable)
        if first:
            below, above = cost(first - 1), cost(first)
            rounding = 3e-7 / (above - below)  # of float32, on which a flat cost puts much weight
            assert level == pytest.approx(first - 1 + (BEARABLE - below) / (above - below), abs=1e-4 + rounding)


def test_a_pace_follows_slowly_and_comes_back():
    flat, parted = similarities(torch.zeros(8, 8)), similarities(torch.eye(8))
    paced = Pace(MARGIN)
    assert paced.follow(flat).hardness == 0
    assert float(paced.follow(parted).hardness) == pytest.approx(float(hardness_at(0.05 * TOP, margin=MARGIN)))
    for _ in range(100):
        hardest = paced.follow(parted)
    assert math.isinf(hardest.hardness)
    assert paced.share == 1
    assert paced.at_level(flat).hardness == math.inf
    for _ in range(200):
        paced.follow(flat)
    assert paced.level < 0.01


PACED = [name for name in LOSSES if LossSection.kind(name)(name=name).takes_pace]


@pytest.mark.parametrize("name", PACED)
def test_every_loss_hears_of_the_hardness(name):
    rng = np.random.default_rng(1)
    matrix = torch.from_numpy(rng.uniform(0, 0.4, (9, 9)))
    offline = OfflineSimilarities(*torch.from_numpy(rng.uniform(0, 0.4, (4, 9))))
    pairs = [Similarities(matrix, torch.eye(9).bool(), offline, hardness) for hardness in (0.0, 10.0, math.inf)]
    costs = [float(LOSSES[name].function(one, **numbers_of(name)).total) for one in pairs]
    assert costs[0] < costs[1] < costs[2]
