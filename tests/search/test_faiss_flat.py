"""FAISS's brute force, on the CPU and on a GPU that is none."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from aoq.pipeline.search import faiss_flat
from aoq.pipeline.search.backends import search_problem
from aoq.pipeline.search.exact import exact_heads
from aoq.pipeline.search.faiss_flat import load_faiss
from aoq.pipeline.search.problem import Problem


@pytest.fixture
def without_faiss(monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    load_faiss.cache_clear()
    yield
    load_faiss.cache_clear()


@pytest.fixture
def problem():
    """Duplicates wider than the first search, so that some anchors are searched again."""
    rng = np.random.default_rng(0)
    images = rng.normal(size=(60, 6)).astype(np.float32)
    captions = rng.normal(size=(300, 6)).astype(np.float32)
    captions[100:200] = captions[0] * 3
    return Problem(images, captions, np.repeat(np.arange(60, dtype=np.int32), 5), 12, 7)


def test_without_faiss_exact_lists_are_the_same(request, problem):
    before = search_problem(problem, search="faiss-flat")
    request.getfixturevalue("without_faiss")
    assert faiss_flat.gpus() == 0
    after = search_problem(problem)
    assert after.search == "onepass"
    for direction in problem.directions:
        np.testing.assert_array_equal(after.lists[direction].negative_ids, before.lists[direction].negative_ids)
        np.testing.assert_array_equal(exact_heads(problem[direction]).ids, before.lists[direction].negative_ids)


@pytest.mark.parametrize("name", ["faiss-flat", "faiss:Flat"])
def test_searches_by_faiss_name_the_extras(without_faiss, problem, name):
    with pytest.raises(ImportError, match=r'pip install "aoq\[cpu\]".*pip install "aoq\[gpu\]"'):
        search_problem(problem, search=name)


class OfAGPU:
    """What FAISS's builds for GPUs have."""

    uploads = 0

    def __init__(self, resources, dimensions, config):
        self.index, self.device = load_faiss().IndexFlatIP(dimensions), config.device

    def add(self, candidates):
        OfAGPU.uploads += 1
        self.index.add(candidates)

    def search(self, anchors, k):
        return self.index.search(anchors, k)


@pytest.fixture
def gpu(monkeypatch):
    faiss = load_faiss()
    monkeypatch.setattr(OfAGPU, "uploads", 0)
    for name, value in (
        ("get_num_gpus", lambda: 1),
        ("GpuIndexFlatConfig", SimpleNamespace),
        ("StandardGpuResources", object),
        ("GpuIndexFlatIP", OfAGPU),
    ):
        monkeypatch.setattr(faiss, name, value, raising=False)


def test_on_a_gpu_candidates_are_uploaded_once(problem, gpu, monkeypatch):
    expected = search_problem(problem, search="faiss-flat").lists
    assert OfAGPU.uploads == 0  # the device is the CPU, whatever FAISS sees
    monkeypatch.setattr(faiss_flat, "find_device", lambda name: torch.device("cuda:0"))
    monkeypatch.setattr(faiss_flat, "ANCHOR_ROWS", 25)
    again = Problem(problem.images, problem.captions, problem.positives, 12, 7, device="cpu")
    found = search_problem(again, search="faiss-flat").lists
    assert OfAGPU.uploads == 2
    for direction in problem.directions:
        assert found[direction].negative_ids.tobytes() == expected[direction].negative_ids.tobytes()


def test_a_gpu_that_fails_stops_the_search(problem, gpu, monkeypatch):
    monkeypatch.setattr(faiss_flat, "find_device", lambda name: torch.device("cuda:0"))
    monkeypatch.setattr(OfAGPU, "search", lambda *_: (_ for _ in ()).throw(RuntimeError("CUDA error: launch failure")))
    with pytest.raises(OSError, match=r"FAISS failed on cuda:0 \(CUDA error: launch failure\); finished"):
        search_problem(problem, search="faiss-flat")
