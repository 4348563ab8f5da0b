"""The arithmetic of an index: products of counts, by hand; and where exact search stops being affordable."""

from __future__ import annotations

import math

import numpy as np
import pytest

from aoq.pipeline.mining.index_cost import BREADTH, DAY, SIZES, Rates, estimate_index, measure_rates, steps
from aoq.pipeline.search.problem import Problem

RATES = Rates(multiplied=1e9, scanned=1e7, scored=1e6)


@pytest.fixture
def problem():
    images, captions = (np.broadcast_to(np.float32(1), (count, 32)) for count in (10_000, 30_000))
    return Problem(images, captions, np.repeat(np.arange(10_000, dtype=np.int32), 3), 50, 20)


def test_the_steps_of_captions_for_images_by_hand(problem):
    """30,000 candidates lie in 4 sqrt(30,000) = 693, about 512 cells; 53 wanted candidates ask for 32 more."""
    found = {step.name: step.seconds for step in steps([problem.size("i2t")], 32, RATES)}
    assert found == {
        "training cells": pytest.approx(10 * 30_000 * 512 * 32 / 1e9),
        "filling cells": pytest.approx(30_000 * 512 * 32 / 1e9),
        "searching samples exactly": pytest.approx((1024 + 512) * 30_000 * 32 / 1e9),
        "choosing cells": pytest.approx(10_000 * 512 * 32 / 1e9),
        "scanning cells": pytest.approx(10_000 * BREADTH * (30_000 / 512) / 1e7),
        "scoring exactly": pytest.approx(10_000 * (53 + 32) / 1e6),
    }


def test_an_exact_search_takes_a_day_at_the_affordable_size(problem):
    by_pairs, by_rows = 50.0, 7.0
    found = estimate_index(problem, by_pairs, by_rows, RATES)
    assert found.asked.exact_seconds == by_pairs + by_rows
    factor = found.affordable_images / 10_000
    assert by_pairs * factor**2 + by_rows * factor == pytest.approx(DAY, rel=1e-3)
    assert [scale.images for scale in found.larger] == list(SIZES)
    assert [scale.captions for scale in found.larger] == [3 * size for size in SIZES]
    assert [scale.exact_seconds for scale in found.larger] == [
        pytest.approx(by_pairs * (size / 10_000) ** 2 + by_rows * size / 10_000) for size in SIZES
    ]


def test_an_index_grows_slower_than_the_pairs_and_its_arithmetic_adds_up(problem):
    found = estimate_index(problem, 50.0, 7.0, RATES)
    ten, fifty = found.larger[1:]
    assert 5 < fifty.index_seconds / ten.index_seconds < 5**1.75 < fifty.exact_seconds / ten.exact_seconds
    assert fifty.index_bytes == 4 * 50_000_000 * (32 + 8)
    assert fifty.building_bytes == 2 * 4 * 32 * 64 * 65_536  # 150 million captions in 65,536 cells, 64 vectors each
    seconds = 0.0
    for line in found.arithmetic:
        factors, _, rest = line.partition(": ")[2].partition(" = ")
        product = math.prod(float(factor.split()[0].replace(",", "")) for factor in factors.split(" x "))
        total, rate = rest.split(", at ")
        assert product == pytest.approx(float(total), rel=0.01)
        seconds += product / float(rate.split()[0])
    assert seconds == pytest.approx(fifty.index_seconds, rel=0.01)


def test_of_one_set_one_direction_is_counted():
    vectors = np.broadcast_to(np.float32(1), (10_000, 32))
    alone = Problem(vectors, vectors, np.empty((0, 2), np.int32), 50, 0, one_set=True)
    assert len(estimate_index(alone, 1.0, 1.0, RATES).arithmetic) == 6


def test_rates_are_measured():
    pytest.importorskip("faiss")
    rates = measure_rates(16, 20)
    assert rates.multiplied > rates.scanned > 0
    assert rates.scored > 0
