"""Backends by name: the lists of each are those of the table, and one that only comes near says how near."""

from dataclasses import replace

import numpy as np
import pytest

from aoq.pipeline.search import faiss_index
from aoq.pipeline.search.backends import BACKENDS, search_problem
from aoq.pipeline.search.problem import DIRECTIONS
from tests.search.problems import mined, two_captions_each

EXACT = [name for name, backend in BACKENDS.items() if backend.is_exact]


@pytest.fixture
def problem():
    return two_captions_each(400)


def test_in_memory_approximate_lists_are_those_of_the_table(problem, tmp_path, monkeypatch):
    monkeypatch.setattr(faiss_index, "ANCHOR_ROWS", 150)
    search = "faiss:IVF16,Flat|nprobe=4"
    found = search_problem(problem, search=search, recall_floor=0.1)
    table = mined(problem, tmp_path, search, recall_floor=0.1)
    for direction in DIRECTIONS:
        for column in ("negative_ids", "scores", "positive_score"):
            np.testing.assert_array_equal(getattr(found.lists[direction], column), getattr(table[direction], column))
        assert found.guarantees[direction].items() <= table.manifest["directions"][direction].items()


def test_an_index_that_looks_everywhere_finds_everything(problem, tmp_path):
    near = mined(problem, tmp_path / "near", "faiss:IVF16,Flat|nprobe=16")
    assert all(near.manifest["directions"][direction]["recall"] == 1 for direction in DIRECTIONS)
    assert near.sha256 == mined(problem, tmp_path / "exact", "onepass").sha256


def test_rows_that_an_index_cannot_fill_are_short(problem, tmp_path):
    """One of 64 clusters holds fewer images than are asked for."""
    near = mined(problem, tmp_path, "faiss:IVF64,Flat|nprobe=1", recall_floor=0.01)
    short = near.t2i.negative_ids < 0
    assert short.any()
    assert np.isnan(near.t2i.scores[short]).all()
    assert not (np.diff(short.astype(int), axis=1) < 0).any()  # padding stands at the end


@pytest.mark.parametrize("search", ["faiss-flat", "faiss:IVF16,Flat|nprobe=16"])
def test_little_memory_and_short_lists_change_nothing(problem, tmp_path, search):
    """Anchor 0 has three negatives only, and all others lists with more candidates than are searched at once."""
    captions = np.arange(3, len(problem.captions))
    pairs = np.stack([np.zeros_like(captions), captions], axis=1)
    problem = replace(problem, positives=np.concatenate([problem.positives, pairs]), memory=4_000_000)
    table, exact = mined(problem, tmp_path / "near", search), mined(problem, tmp_path / "exact", "onepass")
    assert table.i2t.negative_ids.tolist() == exact.i2t.negative_ids.tolist()
    assert {one.get("recall", 1.0) for one in table.manifest["directions"].values()} == {1.0}


@pytest.mark.parametrize(
    ("search", "message"),
    [
        ("faiss:Nonsense", r"FAISS cannot build 'Nonsense' in 12 dimensions .*IVF256,Flat\|nprobe=32"),
        ("faiss:Pad2000000000,Flat", "'Pad2000000000,Flat' contains a number above 16,777,216"),
        ("faiss:IVF16,Flat|probes=4", r"FAISS cannot build 'IVF16,Flat\|probes=4'"),
        ("faiss:IVF16,Flat|nprobe=0", "FAISS cannot search with 'nprobe=0'"),
        ("exact", "no search 'exact'; known are auto, onepass, faiss-flat, .*and faiss:FACTORY"),
    ],
)
def test_a_search_that_cannot_be_is_refused(problem, tmp_path, search, message):
    with pytest.raises(ValueError, match=message):
        mined(problem, tmp_path, search)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"captions": np.ones((800, 13), np.float32)}, "the two sides have 12 and 13 dimensions"),
        ({"images": np.ones((0, 12), np.float32)}, "there are no images"),
        ({"positives": np.zeros(7, np.int32)}, "images are given for 7 captions, but there are 800"),
        ({"captions": np.ones((0, 12), np.float32)}, "there are no captions"),
        (
            {"h_images": 400},
            "h_images = 400, but t2i lists have at most 399 negatives; lower it",
        ),
        ({"positives": np.array([[0, 0], [400, 1]])}, "pair 1 names image 400, but images are numbered 0 to 399"),
        ({"positives": np.array([[0, -1]])}, "pair 0 names caption -1, but captions are numbered 0 to 799"),
        ({"positives": np.zeros((3, 3), np.int32)}, r"positives have shape \(3, 3\); give \(n, 2\) rows"),
        ({"h_images": 0, "h_captions": 0}, "one must be at least 1, the other may be 0"),
        ({"h_images": -1}, "h_images -1; one must be at least 1"),
    ],
)
def test_a_problem_that_cannot_be_is_refused(problem, change, message):
    with pytest.raises(ValueError, match=message):
        replace(problem, **change)


@pytest.mark.parametrize("search", EXACT)
def test_vectors_that_are_not_finite_are_named(problem, tmp_path, search):
    captions = problem.captions.copy()
    captions[7, 3], captions[9, 1] = np.nan, np.inf
    with pytest.raises(ValueError, match="row 7 of the captions is not finite"):
        mined(replace(problem, captions=captions), tmp_path, search)


@pytest.mark.parametrize("name", BACKENDS)
def test_every_backend_describes_itself(problem, name):
    backend = BACKENDS[name]
    assert backend.name == name
    assert backend.about.startswith("exact, " if backend.is_exact else "approximate, ")
    if backend.costs is not None:
        assert len(backend.costs(problem)) == len(backend.plan(problem))
