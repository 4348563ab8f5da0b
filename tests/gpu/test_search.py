"""The one pass on a GPU: the lists that the CPU finds, and the arithmetic that its proof relies on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from aoq.pipeline.engine import products_in
from aoq.pipeline.search import scan
from aoq.pipeline.search.backends import search_problem
from aoq.pipeline.search.device import TF32, Operand, arithmetics, errors_of
from aoq.pipeline.search.problem import DIRECTIONS, Problem
from tests.search.problems import KINDS, NAMES, PINNED, pinned_lists, problem_named, vectors_of

pytestmark = pytest.mark.gpu


@pytest.fixture(params=["bfloat16", "tf32", "float32", "float64"])
def how(request, device, monkeypatch):
    able = {each.name: each for each in arithmetics(device)}
    if request.param not in able:
        pytest.skip("the device has no units for it")
    monkeypatch.setattr(scan, "arithmetics", lambda device: [able[request.param]])
    return able[request.param]


@pytest.mark.parametrize("kind", [*KINDS, "of one sign"])
@pytest.mark.parametrize("size", [7, 1024, 4096])
def test_products_are_within_their_bound(device, how, size, kind):
    """All of one sign and of one size is the worst for sums that are cut."""
    rng = np.random.default_rng(size)
    sides = [vectors_of(rng, 256, size, "normal" if kind == "of one sign" else kind) for _ in range(2)]
    sides = [np.abs(side) for side in sides] if kind == "of one sign" else sides
    one, other = (Operand.of(side, np.linalg.norm(side.astype(np.float64), axis=1), how, device) for side in sides)
    with products_in("tf32" if how.name == TF32.name else "float32"):
        near = (one.near @ other.near.T).double()
    exact, errors = one.vectors.double() @ other.vectors.double().T, errors_of(one, other, how)[:, None]
    assert ((near - exact).abs() <= errors + how.result * (exact.abs() + errors)).all()


def test_lists_are_those_that_are_pinned(device, how):
    for name in NAMES:
        assert pinned_lists(replace(problem_named(name), device=device.type)) == PINNED[name]


def many_tiles(device):
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(50, 256))
    images = (centres[rng.integers(0, 50, 9000)] + rng.normal(size=(9000, 256))).astype(np.float32)
    captions = np.repeat(images, 5, axis=0) + rng.normal(size=(45000, 256)).astype(np.float32)
    captions[rng.integers(0, 45000, 900)] = captions[rng.integers(0, 45000, 900)]
    return Problem(images, captions, np.repeat(np.arange(9000, dtype=np.int32), 5), 100, 20, device=device)


def assert_same(ours, theirs):
    for direction in DIRECTIONS:
        for column in ("negative_ids", "scores", "positive_score"):
            assert getattr(ours[direction], column).tobytes() == getattr(theirs[direction], column).tobytes()


@pytest.fixture(scope="module")
def expected():
    return search_problem(many_tiles("cpu"), search="onepass").lists


@pytest.mark.parametrize("search", ["onepass", "faiss-flat"])
def test_many_tiles_have_the_lists_of_the_cpu(device, search, expected):
    assert_same(search_problem(many_tiles(device.type), search=search).lists, expected)


def test_a_gpu_whose_memory_runs_out_has_smaller_tiles(device, expected, caplog):
    """The allocator gets 600 MB of what the GPU reports as free, as if another process had taken the rest."""
    if device.type != "cuda":
        pytest.skip("a CPU has no memory of its own")
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(600 * 2**20 / torch.cuda.get_device_properties(device).total_memory)
    try:
        ours = search_problem(many_tiles("cuda"), search="onepass").lists
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert_same(ours, expected)
    assert "tiles of half the size" in caplog.text
