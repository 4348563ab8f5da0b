"""What is said beforehand against what then happens: counts to the last one, sizes nearly, times not at all."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from aoq.pipeline.mining import mine as mining
from aoq.pipeline.mining import probe
from aoq.pipeline.mining.estimate import estimate
from aoq.pipeline.mining.shape import Shape
from aoq.pipeline.search.problem import Problem
from aoq.pipeline.search.products import choice
from aoq.pipeline.search.products.floats import FloatProduct

SHAPE = Shape(1100, 3300, 8, 3, 40, 15)


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(probe, "SECONDS", 0)


@pytest.fixture
def problem():
    rng = np.random.default_rng(0)
    images, captions = (rng.normal(size=(n, 8)).astype(np.float32) for n in (1100, 3300))
    return Problem(images, captions, np.repeat(np.arange(1100, dtype=np.int32), 3), 40, 15)


def measured(problem, folder, search, monkeypatch):
    """The work folder's bytes before it is cleared, and the lists' bytes."""
    sizes = []
    clear = shutil.rmtree
    monkeypatch.setattr(
        mining.shutil, "rmtree", lambda path: (sizes.append(sum(p.stat().st_size for p in path.iterdir())), clear(path))
    )
    mining.mine(problem, search=search, provenance={"dataset": "d"}, work=folder / "w", output=folder / "t")
    return sizes[0], sum((folder / "t" / f"{name}.parquet").stat().st_size for name in ("i2t", "t2i"))


@pytest.mark.parametrize("search", ["onepass", "faiss-flat"])
def test_sizes_are_nearly_those_of_the_real_run(problem, tmp_path, monkeypatch, search):
    work, table = measured(problem, tmp_path, search, monkeypatch)
    found = estimate(SHAPE, probe.pool_of(problem.images, problem.captions), search, 10**6)
    assert found.work_bytes == pytest.approx(work, rel=0.2)
    assert found.table_bytes == pytest.approx(table, rel=0.2)
    assert (found.memory_bytes, found.vector_bytes) == (10**6, 4400 * 8 * 4)
    assert len(found.seconds) >= 3
    assert all(seconds > 0 for seconds in found.seconds.values())


def test_operations_are_those_of_the_products_made(problem, tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(choice, "fastest_precision", lambda: "float32")
    multiply = FloatProduct.__call__

    def counted(product, one, other):
        made.append(2 * len(one) * len(other) * one.shape[1])
        return multiply(product, one, other)

    monkeypatch.setattr(FloatProduct, "__call__", counted)
    mining.mine(problem, search="onepass", provenance={"dataset": "d"}, work=tmp_path / "w", output=tmp_path / "t")
    assert SHAPE.operations("onepass") == sum(made)
    assert SHAPE.operations("faiss-flat") == 2 * sum(2 * 8 for _ in range(1100) for _ in range(3300))


def test_a_made_up_world_has_the_shape_that_the_probe_needs():
    pool = probe.made_up(Shape(50, 100_000, 12, 5, 10, 10))
    assert (pool.images.shape, pool.captions.shape) == ((50, 12), (probe.POOL, 12))
    np.testing.assert_allclose(np.linalg.norm(pool.captions, axis=1), 1, rtol=1e-5)


def test_of_an_index_only_sizes_are_said(problem):
    found = estimate(SHAPE, probe.pool_of(problem.images, problem.captions), "faiss:IVF16,Flat", 10**6)
    assert (found.operations, found.seconds) == (None, {})
    assert found.table_bytes > 0
