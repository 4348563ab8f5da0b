"""The one pass on a GPU: the lists that the CPU finds, and the arithmetic that its proof relies on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from aoq.pipeline.engine import products_in
from aoq.pipeline.search import limits
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
    monkeypatch.setattr(limits, "arithmetics", lambda device: [able[request.param]])
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


@pytest.mark.parametrize("search", ["onepass", "faiss-flat"])
def test_many_tiles_have_the_lists_of_the_cpu(device, search):
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(50, 256))
    images = (centres[rng.integers(0, 50, 9000)] + rng.normal(size=(9000, 256))).astype(np.float32)
    captions = np.repeat(images, 5, axis=0) + rng.normal(size=(45000, 256)).astype(np.float32)
    captions[rng.integers(0, 45000, 900)] = captions[rng.integers(0, 45000, 900)]
    problem = Problem(images, captions, np.repeat(np.arange(9000, dtype=np.int32), 5), 100, 20, device=device.type)
    ours = search_problem(problem, search=search).lists
    theirs = search_problem(replace(problem, device="cpu"), search="onepass").lists
    for direction in DIRECTIONS:
        for column in ("negative_ids", "scores", "positive_score"):
            assert getattr(ours[direction], column).tobytes() == getattr(theirs[direction], column).tobytes()


def test_a_full_gpu_has_smaller_tiles(device, caplog):
    """All but 300 MB are taken by somebody else."""
    if device.type != "cuda":
        pytest.skip("a CPU has no memory of its own")
    caplog.set_level("INFO")
    taken = torch.empty(max(0, torch.cuda.mem_get_info(device)[0] - 300 * 2**20), dtype=torch.uint8, device=device)
    name = next(name for name in NAMES if "/8/" in name)
    assert pinned_lists(replace(problem_named(name), device="cuda")) == PINNED[name]
    assert "multiplying" in caplog.text
    del taken
