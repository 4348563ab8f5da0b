"""The one pass on a GPU: the lists that the CPU finds, and the arithmetic that its proof relies on."""

import numpy as np
import pytest
import torch

from aoq.pipeline.search import scan
from aoq.pipeline.search.backends import search_problem
from aoq.pipeline.search.device import arithmetics, choose_tiling
from aoq.pipeline.search.problem import DIRECTIONS, Problem
from tests.search.problems import KINDS, NAMES, check_pinned, check_products

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
    check_products(how, device, 256, size, kind)


def test_lists_are_those_that_are_pinned(device, how):
    check_pinned(NAMES, device=device.type)


def clusters(device):
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(50, 128))
    images = (centres[rng.integers(0, 50, 1500)] + rng.normal(size=(1500, 128))).astype(np.float32)
    captions = np.repeat(images, 5, axis=0) + rng.normal(size=(7500, 128)).astype(np.float32)
    captions[rng.integers(0, 7500, 150)] = captions[rng.integers(0, 7500, 150)]
    return Problem(images, captions, np.repeat(np.arange(1500, dtype=np.int32), 5), 100, 20, device=device)


def assert_same(ours, theirs):
    for direction in DIRECTIONS:
        for column in ("negative_ids", "scores", "positive_score"):
            assert getattr(ours[direction], column).tobytes() == getattr(theirs[direction], column).tobytes()


@pytest.fixture(scope="module")
def expected():
    return search_problem(clusters("cpu"), search="onepass").lists


@pytest.mark.parametrize("search", ["onepass", "faiss-flat"])
def test_many_tiles_have_the_lists_of_the_cpu(device, search, expected, monkeypatch):
    def little_room(*given):
        room = choose_tiling(*given)
        return room._replace(rows=room.rows // 16, columns=room.columns // 8)  # 512 x 2048 on a GPU

    monkeypatch.setattr(scan, "choose_tiling", little_room)
    assert_same(search_problem(clusters(device.type), search=search).lists, expected)


def test_a_gpu_whose_memory_runs_out_has_smaller_tiles(device, expected, caplog):
    """The allocator gets 300 MB of what the GPU reports as free, as if another process had taken the rest.

    All pairs are one tile, and to score those of the lists at once takes more: 150,000 pairs of 128 float64 products.
    """
    if device.type != "cuda":
        pytest.skip("a CPU has no memory of its own")
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(300 * 2**20 / torch.cuda.get_device_properties(device).total_memory)
    try:
        ours = search_problem(clusters("cuda"), search="onepass").lists
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert_same(ours, expected)
    assert "tiles of half the size" in caplog.text
