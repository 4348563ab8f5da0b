"""An estimate is compared with what then happens: counts exactly, sizes nearly, times not at all; an index by hand."""

from __future__ import annotations

import logging
import math
from dataclasses import replace

import numpy as np
import pytest

from aoq.pipeline.mining import estimate as estimating
from aoq.pipeline.mining.estimate import (
    BREADTH,
    DAY,
    SIZES,
    Rates,
    estimate,
    estimate_index,
    index_steps,
    measure_rates,
    unknown_vectors,
)
from aoq.pipeline.mining.mine import mine
from aoq.pipeline.search import exact, scan
from aoq.pipeline.search.backends import BACKENDS
from aoq.pipeline.search.kept import Kept
from aoq.pipeline.search.problem import Problem
from aoq.pipeline.search.store import Memory
from aoq.pipeline.search.units import run_in_process

IMAGES, CAPTIONS, DIMENSIONS = 1100, 3300, 8
RATES = Rates(multiplied=1e9, scanned=1e7, scored=1e6)


@pytest.fixture
def problem():
    rng = np.random.default_rng(0)
    images, captions = (rng.normal(size=(n, DIMENSIONS)).astype(np.float32) for n in (IMAGES, CAPTIONS))
    return Problem(images, captions, np.repeat(np.arange(IMAGES, dtype=np.int32), 3), 40, 15, 10**6)


def measured(problem, folder, search):
    """The work folder's bytes, and the lists' bytes."""
    mine(problem, search=search, provenance={"dataset": "d"}, work=folder / "w", output=folder / "t")
    work = sum(path.stat().st_size for path in (folder / "w").iterdir())
    return work, sum((folder / "t" / f"{name}.parquet").stat().st_size for name in ("i2t", "t2i"))


@pytest.mark.parametrize("piece", [(4096, 8192), (500, 1500)])
@pytest.mark.parametrize("search", ["onepass", "faiss-flat"])
def test_sizes_are_nearly_those_of_the_real_run(problem, tmp_path, monkeypatch, search, piece):
    work, table = measured(problem, tmp_path, search)
    monkeypatch.setattr(estimating, "PIECE_IMAGES", piece[0])
    monkeypatch.setattr(estimating, "PIECE_CAPTIONS", piece[1])
    found = estimate(problem, search)
    assert found.work_bytes == pytest.approx(work, rel=0.2)
    assert found.table_bytes == pytest.approx(table, rel=0.2)
    assert (found.memory_bytes, found.vector_bytes) == (10**6, 4400 * 8 * 4)
    assert len(found.seconds) >= 3
    assert all(seconds > 0 for seconds in found.seconds.values())


def test_operations_are_about_those_of_the_search(problem, monkeypatch):
    """Tiles have all pairs, and some once more; exact scores and pairs passed on are nearly as many as expected."""
    multiply, add, made, kept = scan.multiply, Kept.add, [], []

    def counted(one, other, out):
        made.append(2 * len(one) * DIMENSIONS * len(other))
        return multiply(one, other, out)

    def keeping(keeper, anchors, *others):
        kept.append(len(anchors))
        add(keeper, anchors, *others)

    monkeypatch.setattr(scan, "multiply", counted)
    monkeypatch.setattr(Kept, "add", keeping)
    store = Memory()
    run_in_process(BACKENDS["onepass"].plan(problem), problem, store, lambda done, total: None)
    costs = BACKENDS["onepass"].costs(problem)
    assert list(costs) == ["limits from samples", "tiles and lists of images", "lists of captions"]
    pairs = 2 * DIMENSIONS * IMAGES * CAPTIONS
    assert pairs <= sum(made) < 1.1 * pairs
    assert sum(kept) * 2 * DIMENSIONS == pytest.approx(costs["tiles and lists of images"] - pairs, rel=0.2)
    passed = sum(len(store.read(name)["keys"].combine_chunks().flatten()) for name in store.names("kept"))
    assert passed == pytest.approx(costs["lists of captions"], rel=0.2)
    monkeypatch.undo()
    assert estimate(problem, "onepass").operations == sum(costs.values())
    assert estimate(problem, "faiss-flat").operations == 2 * pairs


def test_seconds_are_those_of_the_piece_scaled_by_operations(problem, monkeypatch):
    """A search that takes a second for a million operations takes as much beyond the piece."""
    monkeypatch.setattr(estimating, "PIECE_IMAGES", 550)
    monkeypatch.setattr(estimating, "PIECE_CAPTIONS", 825)

    def measure(piece, backend):
        assert (len(piece.images), len(piece.captions)) in {(550, 825), (64, 64)}
        return {"looking the vectors through": 0.1, "one": 3.0, "two": 1.0, "writing the table": 0.5}, 100

    monkeypatch.setattr(estimating, "_mine", measure)
    backend = replace(
        BACKENDS["onepass"],
        name="toy",
        costs=lambda problem: {
            "one": 1.0 * len(problem.images) * len(problem.captions),
            "two": 1.0 * len(problem.captions),
        },
    )
    monkeypatch.setitem(BACKENDS, "toy", backend)
    found = estimate(problem, "toy")
    assert (found.seconds["one"], found.seconds["two"]) == (3.0 * 8, 1.0 * 4)
    assert found.seconds["writing the table"] == pytest.approx(0.5 * (1100 * 40 + 3300 * 15) / (550 * 10 + 825 * 8))


def test_what_a_search_says_of_a_piece_is_not_logged(problem, tmp_path, monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(exact, "_log_second_search", lambda found, side: exact.logger.info("a second exact search"))
    mine(problem, search="onepass", provenance={"dataset": "d"}, work=tmp_path / "w", output=tmp_path / "t")
    assert "second exact search" in caplog.text
    caplog.clear()
    estimate(problem, "onepass")
    assert caplog.text == ""


def test_vectors_that_are_not_there_yet_take_no_memory():
    whole, piece = unknown_vectors(50, 1_000_000, 12)
    assert [vectors.shape for vectors in whole] == [(50, 12), (1_000_000, 12)]
    assert [vectors.shape for vectors in piece] == [(50, 12), (estimating.PIECE_CAPTIONS, 12)]
    assert whole[1].strides == (0, 0)
    np.testing.assert_allclose(np.linalg.norm(piece[1], axis=1), 1, rtol=1e-5)


def test_of_an_index_only_sizes_are_said(problem):
    found = estimate(problem, "faiss:IVF16,Flat")
    assert (found.operations, found.seconds) == (None, {})
    assert found.table_bytes > 0


def test_an_index_of_cells_stands_beside_the_exact_search(problem, monkeypatch):
    pytest.importorskip("faiss")
    assert estimate(problem, "ivf").index is None  # too small to say how it grows
    monkeypatch.setattr(estimating, "LEAST_PAIRS", 10**6)
    found = estimate(problem, "ivf")
    assert found.index is not None
    assert found.operations is None
    assert sum(found.seconds.values()) > found.index.asked.index_seconds
    assert {"training cells", "scanning cells", "scoring exactly", "writing the table"} < found.seconds.keys()
    exact = estimate(problem, "onepass")
    assert exact.index is not None
    assert exact.index.asked.exact_seconds == pytest.approx(sum(exact.seconds.values()))


@pytest.fixture
def large():
    images, captions = (np.broadcast_to(np.float32(1), (count, 32)) for count in (10_000, 30_000))
    return Problem(images, captions, np.repeat(np.arange(10_000, dtype=np.int32), 3), 50, 20)


def test_the_steps_of_captions_for_images_by_hand(large):
    """30,000 candidates lie in 4 sqrt(30,000) = 693, about 512 cells; 53 wanted candidates ask for 32 more."""
    found = {step.name: step.seconds for step in index_steps(large.size("i2t"), 32, RATES)}
    assert found == {
        "training cells": pytest.approx(10 * 30_000 * 512 * 32 / 1e9),
        "filling cells": pytest.approx(30_000 * 512 * 32 / 1e9),
        "searching samples exactly": pytest.approx((1024 + 512) * 30_000 * 32 / 1e9),
        "choosing cells": pytest.approx(10_000 * 512 * 32 / 1e9),
        "scanning cells": pytest.approx(10_000 * BREADTH * (30_000 / 512) / 1e7),
        "scoring exactly": pytest.approx(10_000 * (53 + 32) / 1e6),
    }


def test_an_exact_search_takes_a_day_at_the_affordable_size(large):
    by_pairs, by_rows = 50.0, 7.0
    found = estimate_index(large, by_pairs, by_rows, RATES)
    assert found.asked.exact_seconds == by_pairs + by_rows
    factor = found.affordable_images / 10_000
    assert by_pairs * factor**2 + by_rows * factor == pytest.approx(DAY, rel=1e-3)
    assert [scale.images for scale in found.larger] == list(SIZES)
    assert [scale.captions for scale in found.larger] == [3 * size for size in SIZES]
    assert [scale.exact_seconds for scale in found.larger] == [
        pytest.approx(by_pairs * (size / 10_000) ** 2 + by_rows * size / 10_000) for size in SIZES
    ]


def test_an_index_grows_slower_than_the_pairs_and_its_arithmetic_adds_up(large):
    found = estimate_index(large, 50.0, 7.0, RATES)
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
