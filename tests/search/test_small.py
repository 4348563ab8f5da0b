"""Small jobs: the lists of the tiles, found without loading torch or compiling anything."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from aoq.pipeline.mining.hard_negatives import hard_negatives
from aoq.pipeline.search import choosing, small
from aoq.pipeline.search.backends import BACKENDS
from aoq.pipeline.search.choosing import backend_of
from aoq.pipeline.search.problem import DIRECTIONS, Problem
from aoq.pipeline.search.runners import search_problem
from aoq.pipeline.search.small import SMALL, is_small
from aoq.pipeline.tables.table import read_table

HEAVY = "torch", "numba", "llvmlite", "faiss"


@pytest.fixture
def problem():
    """Vectors of which a third stand several times."""
    rng = np.random.default_rng(2)
    images = rng.normal(size=(300, 16)).astype(np.float32)
    captions = np.repeat(images, 3, axis=0) + rng.normal(size=(900, 16)).astype(np.float32)
    captions[600:] = captions[rng.integers(0, 40, 300)]
    return Problem(images, captions, np.repeat(np.arange(300), 3), 30, 12)


def assert_same(found, expected):
    for direction in expected.lists:
        for column in ("negative_ids", "scores", "positive_score"):
            ours, theirs = getattr(found.lists[direction], column), getattr(expected.lists[direction], column)
            np.testing.assert_array_equal(ours, theirs)


def test_a_job_whose_pairs_tie_beyond_measure_is_left_to_the_tiles(problem, monkeypatch):
    expected = search_problem(problem, search="faiss-flat")
    assert_same(search_problem(problem, search=SMALL), expected)
    monkeypatch.setattr(small, "MOST", 1000)
    assert_same(search_problem(problem, search=SMALL), expected)


@pytest.mark.parametrize("most", [1, 2**24])
def test_one_set_has_the_lists_of_the_tiles(monkeypatch, most):
    monkeypatch.setattr(small, "MOST", most)
    rows = np.random.default_rng(0).integers(-2, 3, (80, 3)).astype(np.float32)
    problem = Problem(rows, rows, np.array([[0, 1], [5, 7], [1, 9]]), 20, 0, one_set=True)
    assert_same(search_problem(problem, search=SMALL), search_problem(problem, search="faiss-flat"))


def test_what_was_not_scored_is_below_the_bound(problem):
    """Every row is certified, and as many as its list holds reach its bound, which lies just below the last."""
    found = search_problem(problem, search=SMALL)
    for direction in DIRECTIONS:
        side, lists = problem[direction], found.lists[direction]
        scores = side.anchors.astype(np.float64) @ side.candidates.T.astype(np.float64)
        scores[np.repeat(np.arange(len(scores)), np.diff(side.positives.offsets)), side.positives.ids] = -np.inf
        assert (lists.scores[:, -1] > lists.bound).all()
        assert (lists.scores[:, -1] < lists.bound + 1e-3).all()
        below = np.where(scores < lists.scores[:, -1:] - 1e-3, scores, -np.inf)  # none of these was scored
        assert (below.max(axis=1) < lists.bound).all()


def test_jobs_are_small_where_all_similarities_fit_in_memory_and_seconds(problem):
    assert is_small(problem)
    rows = np.ones((11_600, 2), np.float32)
    assert not is_small(Problem(rows, rows, np.arange(11_600), 1, 1))  # 2**27 pairs, and some
    wide = np.zeros((3000, 2**14), np.float32)
    assert not is_small(Problem(wide, wide, np.arange(3000), 1, 1))
    assert is_small(Problem(wide[:2000], wide[:2000], np.arange(2000), 1, 1))
    assert not is_small(Problem(problem.images, problem.captions, problem.positives, 3, 3, memory=10**6))
    deep = Problem(rows[:600], rows[:7000], np.zeros(7000, np.int32) - 1, 6900, 590, memory=10**8)
    assert not is_small(deep)  # 8 million pairs of lists
    assert is_small(replace(deep, h_captions=9, h_images=9))


def test_tiles_are_taken_once_they_are_loaded_or_asked_for_a_gpu(problem, monkeypatch):
    assert backend_of(problem, "auto") is BACKENDS["onepass"]
    monkeypatch.setattr(choosing, "LOADED", "nothing")
    assert backend_of(problem, "auto") is SMALL
    assert backend_of(problem, "onepass") is SMALL
    assert backend_of(problem, "streamed") is BACKENDS["onepass"]
    object.__setattr__(problem, "device", "cuda")
    assert backend_of(problem, "onepass") is BACKENDS["onepass"]


def run(code, *arguments):
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def test_a_small_table_is_mined_without_loading_torch_or_compiling(problem, tmp_path):
    for side in ("images", "captions"):
        np.save(tmp_path / f"{side}.npy", getattr(problem, side))
    given = [str(tmp_path / name) for name in ("images.npy", "captions.npy", "table")]
    depths = ["--per-image", "3", "--h-captions", "30", "--h-images", "12", "--metric", "dot"]
    code = f"""
import sys
from aoq.pipeline.cli import main
main(["mine", *sys.argv[1:]], standalone_mode=False)
print([name for name in {HEAVY!r} if name in sys.modules])
"""
    assert run(code, *given, *depths) == "[]"
    found = read_table(tmp_path / "table")
    assert found.manifest["directions"]["i2t"]["certified_share"] == 1
    expected = hard_negatives(problem.images, problem.captions, np.repeat(np.arange(300), 3), h=(30, 12), metric="dot")
    for direction in DIRECTIONS:
        np.testing.assert_array_equal(found[direction].negative_ids, expected[direction].negative_ids)
        np.testing.assert_array_equal(found[direction].scores, expected[direction].scores)


def test_small_lists_in_memory_load_nothing_either():
    code = f"""
import sys
import numpy as np
import aoq
table = aoq.hard_negatives(np.eye(6, 4) + 1, np.eye(6, 4) + 2, h=2)
print([name for name in {HEAVY!r} if name in sys.modules])
"""
    assert run(code) == "[]"


def test_a_number_of_threads_holds_for_what_is_loaded_later():
    code = """
import json
from aoq.pipeline.search.threads import keep_threads, plan_threads, thread_count
plan_threads(1)
before = thread_count()
import torch
torch.set_num_threads(2)
keep_threads()
print(json.dumps([before, thread_count(), torch.get_num_threads()]))
"""
    assert json.loads(run(code)) == [1, 1, 1]
