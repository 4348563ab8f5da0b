"""Without FAISS exact searches find the same lists by torch, and searches by FAISS name the extra to install."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from aoq.pipeline.search import brute_force
from aoq.pipeline.search.brute_force import load_faiss, search
from aoq.pipeline.search.exact import exact_heads
from aoq.pipeline.search.problem import Problem
from aoq.pipeline.search.runners import search_problem
from aoq.pipeline.search.threads import use_threads


@pytest.fixture
def without_faiss(monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    brute_force.load_faiss.cache_clear()
    yield
    brute_force.load_faiss.cache_clear()


@pytest.fixture
def problem():
    """Duplicates wider than the first search, so that uncertified rows are searched deeper."""
    rng = np.random.default_rng(0)
    images = rng.normal(size=(60, 6)).astype(np.float32)
    captions = rng.normal(size=(300, 6)).astype(np.float32)
    captions[100:200] = captions[0] * 3
    return Problem(images, captions, np.repeat(np.arange(60, dtype=np.int32), 5), 12, 7)


@pytest.mark.parametrize("k", [1, 10, 300])
def test_the_nearest_are_found_block_by_block(without_faiss, monkeypatch, problem, k):
    monkeypatch.setattr(brute_force, "BLOCK", 37)
    problem.captions.setflags(write=False)
    scores, ids = search(problem.images, problem.captions, k)
    products = problem.images.astype(np.float64) @ problem.captions.T.astype(np.float64)
    np.testing.assert_allclose(scores, -np.sort(-products, axis=1)[:, :k], atol=1e-5)
    np.testing.assert_allclose(scores, np.take_along_axis(products, ids, axis=1), atol=1e-5)
    assert all(len(set(row)) == k for row in ids.tolist())


@pytest.mark.parametrize("few", [59, 60])
def test_few_anchors_are_searched_by_torch_and_more_by_faiss(monkeypatch, problem, few):
    faiss, searched = load_faiss(), []

    def knn(*given, **named):
        searched.append(given)
        return faiss.knn(*given, **named)

    monkeypatch.setattr(brute_force, "FEW", few)
    double = SimpleNamespace(knn=knn, get_num_gpus=lambda: 0, METRIC_INNER_PRODUCT=faiss.METRIC_INNER_PRODUCT)
    monkeypatch.setattr(brute_force, "load_faiss", lambda: double)
    scores, _ = search(problem.images, problem.captions, 5)
    assert len(searched) == (few < len(problem.images))
    products = problem.images.astype(np.float64) @ problem.captions.T.astype(np.float64)
    np.testing.assert_allclose(scores, -np.sort(-products, axis=1)[:, :5], atol=1e-5)


def test_exact_lists_are_the_same(request, problem):
    before = search_problem(problem, search="faiss-flat")
    request.getfixturevalue("without_faiss")
    assert brute_force.gpus() == 0
    use_threads(torch.get_num_threads())
    after = search_problem(problem)
    assert after.search == "onepass"
    for direction in problem.directions:
        np.testing.assert_array_equal(after.lists[direction].negative_ids, before.lists[direction].negative_ids)
        np.testing.assert_array_equal(exact_heads(problem[direction]).ids, before.lists[direction].negative_ids)


@pytest.mark.parametrize("name", ["faiss-flat", "faiss:Flat"])
def test_searches_by_faiss_name_the_extras(without_faiss, problem, name):
    with pytest.raises(ImportError, match=r'pip install "aoq\[cpu\]".*pip install "aoq\[gpu\]"'):
        search_problem(problem, search=name)


def test_a_faiss_build_for_gpus_is_asked_how_many_it_sees(monkeypatch):
    faiss = brute_force.load_faiss()
    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 2)
    assert brute_force.gpus() == 2
