"""An estimate is compared with what then happens: counts exactly, sizes nearly, times not at all."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
import pytest

from aoq.pipeline.mining import estimate as estimating
from aoq.pipeline.mining.estimate import estimate, unknown_vectors
from aoq.pipeline.mining.mine import mine
from aoq.pipeline.search import exact, kept_pairs, onepass
from aoq.pipeline.search.backends import BACKENDS
from aoq.pipeline.search.problem import Problem
from aoq.pipeline.search.products import choice
from aoq.pipeline.search.products.choice import FloatProduct
from aoq.pipeline.search.proposals import known_heads
from aoq.pipeline.search.tiles import Keeper

IMAGES, CAPTIONS, DIMENSIONS = 1100, 3300, 8


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


def test_operations_are_those_of_the_products_made(problem, tmp_path, monkeypatch):
    """Near products to the last one; exact scores nearly as many as are expected."""
    made, kept, merged = [], [], []
    monkeypatch.setattr(choice, "fastest_precision", lambda: "float32")
    multiply, add = FloatProduct._multiplied, Keeper.add

    def counted(product, one, other):
        made.append(2 * len(one) * len(other) * one.shape[1])
        return multiply(product, one, other)

    def keeping(keeper, anchors, *others):
        kept.append(len(anchors))
        add(keeper, anchors, *others)

    def heads(side, offsets, *others):
        merged.append(offsets[-1])
        return known_heads(side, offsets, *others)

    monkeypatch.setattr(FloatProduct, "_multiplied", counted)
    monkeypatch.setattr(Keeper, "add", keeping)
    monkeypatch.setattr(kept_pairs, "known_heads", heads)
    problem = replace(problem, memory=10**9)
    mine(problem, search="onepass", provenance={"dataset": "d"}, work=tmp_path / "w", output=tmp_path / "t")
    costs = BACKENDS["onepass"].costs(problem)
    limits, tiles, lists_of_captions = costs.values()
    pairs = 2 * DIMENSIONS * IMAGES * CAPTIONS
    assert limits + pairs == sum(made)
    assert sum(kept) * 2 * DIMENSIONS == pytest.approx(tiles - pairs, rel=0.2)
    assert sum(merged) == pytest.approx(lists_of_captions, rel=0.2)
    monkeypatch.undo()
    assert estimate(problem, "onepass").operations == sum(costs.values())
    assert estimate(problem, "faiss-flat").operations == 2 * sum(2 * 8 for _ in range(IMAGES) for _ in range(CAPTIONS))


def test_seconds_are_those_of_the_piece_scaled_by_operations(problem, monkeypatch):
    """A search that takes a second for a million operations takes as much beyond the piece."""
    monkeypatch.setattr(estimating, "PIECE_IMAGES", 550)
    monkeypatch.setattr(estimating, "PIECE_CAPTIONS", 825)

    def measure(piece, backend):
        assert (len(piece.images), len(piece.captions)) in {(550, 825), (64, 64)}
        return {"one": 3.0, "two": 1.0, "writing the table": 0.5}, 100

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
    def certify(found, side):
        exact.logger.info("16 rows needed a second exact search")
        return exact.certify(found, side)

    caplog.set_level(logging.INFO)
    monkeypatch.setattr(onepass, "certify", certify)
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
