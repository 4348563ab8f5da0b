"""An estimate is compared with what then happens: counts exactly, sizes nearly, times not at all."""

import logging
from dataclasses import replace

import numpy as np
import pytest

from aoq.pipeline.mining import estimate as estimating
from aoq.pipeline.mining.estimate import DAY, estimate
from aoq.pipeline.mining.mine import mine
from aoq.pipeline.search import exact
from aoq.pipeline.search.backends import BACKENDS
from aoq.pipeline.search.problem import Problem

IMAGES, CAPTIONS, DIMENSIONS = 1100, 3300, 8


@pytest.fixture(scope="module")
def problem():
    rng = np.random.default_rng(0)
    images, captions = (rng.normal(size=(n, DIMENSIONS)).astype(np.float32) for n in (IMAGES, CAPTIONS))
    return Problem(images, captions, np.repeat(np.arange(IMAGES, dtype=np.int32), 3), 40, 15, 10**6)


@pytest.mark.parametrize("search", ["onepass", "faiss-flat"])
def test_sizes_are_nearly_those_of_the_real_run(problem, tmp_path, monkeypatch, caplog, search):
    """What a search logs about a piece would be taken for the whole, so an estimate logs nothing."""
    monkeypatch.setattr(exact, "_log_second_search", lambda found, side: exact.logger.info("a second exact search"))
    mine(problem, search=search, provenance={"dataset": "d"}, work=tmp_path / "w", output=tmp_path / "t")
    work = sum(path.stat().st_size for path in (tmp_path / "w").iterdir())
    table = sum((tmp_path / "t" / f"{name}.parquet").stat().st_size for name in ("i2t", "t2i"))
    monkeypatch.setattr(estimating, "PIECE_IMAGES", 500)
    monkeypatch.setattr(estimating, "PIECE_CAPTIONS", 1500)
    caplog.set_level(logging.INFO)
    caplog.clear()
    found = estimate(problem, search)
    assert caplog.text == ""
    assert found.work_bytes == pytest.approx(work, rel=0.2)
    assert found.table_bytes == pytest.approx(table, rel=0.2)
    assert (found.memory_bytes, found.vector_bytes) == (10**6, 4400 * 8 * 4)
    assert len(found.seconds) >= 3
    assert all(seconds > 0 for seconds in found.seconds.values())


def test_seconds_are_those_of_the_piece_scaled_by_operations(problem, monkeypatch):
    """A search that takes a second for a million operations takes as much beyond the piece."""
    monkeypatch.setattr(estimating, "PIECE_IMAGES", 550)
    monkeypatch.setattr(estimating, "PIECE_CAPTIONS", 825)
    monkeypatch.setattr(estimating, "LEAST_PAIRS", 1)

    def measure(piece, backend):
        assert (len(piece.images), len(piece.captions)) in {(550, 825), (64, 64)}
        return {"reading the vectors": 0.1, "one": 3.0, "two": 1.0, "writing the table": 0.5}, 100

    monkeypatch.setattr(estimating, "_time_mining", measure)

    def costs(problem):
        return dict.fromkeys(("one", "two"), 1.0 * len(problem.images) * len(problem.captions))

    monkeypatch.setitem(BACKENDS, "toy", replace(BACKENDS["onepass"], name="toy", costs=costs))
    found = estimate(problem, "toy")
    assert (found.seconds["one"], found.seconds["two"]) == (3.0 * 8, 1.0 * 8)
    assert found.seconds["writing the table"] == pytest.approx(0.5 * (1100 * 40 + 3300 * 15) / (550 * 10 + 825 * 8))
    factor, by_rows = found.affordable_images / IMAGES, found.seconds["reading the vectors"]
    by_rows += found.seconds["writing the table"]
    assert 4.0 * 8 * factor**2 + by_rows * factor == pytest.approx(DAY, rel=1e-3)


def test_sizes_alone_are_forecast_for_an_index(problem, monkeypatch):
    monkeypatch.setattr(estimating, "PIECE_IMAGES", 100)
    monkeypatch.setattr(estimating, "PIECE_CAPTIONS", 300)
    found = estimate(problem, "faiss:IVF16,Flat")
    assert (found.seconds, found.affordable_images) == ({}, None)
    assert found.table_bytes > 0
