"""A problem's positives, given as pairs or as the image of each caption, and the directions that are searched."""

import numpy as np
import pytest

from aoq.pipeline.mining.mine import mine
from aoq.pipeline.on_ray import ship_problem
from aoq.pipeline.search.backends import BACKENDS
from aoq.pipeline.search.exact import exact_heads, lists_table
from aoq.pipeline.search.lists import from_arrow
from aoq.pipeline.search.problem import Problem
from aoq.pipeline.search.units import Folder


def problem_of(positives, h_captions=1, h_images=1):
    vectors = np.eye(5, dtype=np.float32)
    return Problem(vectors[:3], vectors, np.array(positives), h_captions, h_images)


def own(problem, direction):
    positives = problem[direction].positives
    return [part.tolist() for part in np.split(positives.ids, positives.offsets[1:-1])]


@pytest.mark.parametrize(
    ("given", "pairs", "of_images", "of_captions"),
    [
        ([2, -1, 0, 2, -1], [[2, 0], [0, 2], [2, 3]], [[2], [], [0, 3]], [[2], [], [0], [2], []]),
        ([[2, 4], [0, 4], [2, 1], [0, 4]], [[2, 1], [0, 4], [2, 4]], [[4], [], [1, 4]], [[], [2], [], [], [0, 2]]),
    ],
    ids=["the image of each caption", "pairs, one of them twice"],
)
def test_positives_are_pairs_in_any_order(given, pairs, of_images, of_captions):
    problem = problem_of(given)
    assert problem.positives.tolist() == pairs
    assert (own(problem, "i2t"), own(problem, "t2i")) == (of_images, of_captions)


def test_in_one_set_pairs_count_both_ways_and_no_row_is_listed_for_itself(caplog):
    vectors = np.eye(4, dtype=np.float32)
    caplog.set_level("INFO")
    problem = Problem(vectors, vectors, np.array([[0, 2], [2, 0], [3, 3]]), 1, 0, one_set=True)
    assert "ignored 1 pairs of a row with itself" in caplog.text
    assert problem.positives.tolist() == [[2, 0], [0, 2]]
    assert own(problem, "i2t") == [[0, 2], [1], [0, 2], [3]]
    side = problem["i2t"].rows(slice(2, 4))
    scores = from_arrow(lists_table(side, exact_heads(side), 2)).positive_score
    np.testing.assert_array_equal(scores, [0, np.nan])
    assert problem.size("i2t").wanted == 3


def test_a_cluster_opens_one_set_as_one_array(tmp_path):
    np.save(tmp_path / "items.npy", np.eye(4, dtype=np.float32))
    vectors = np.load(tmp_path / "items.npy", mmap_mode="r")
    problem = Problem(vectors, vectors, np.array([[0, 2]]), 1, 0, one_set=True)
    opened = ship_problem(problem, Folder(tmp_path, "key"), fetched={}).open()
    assert opened.captions is opened.images
    assert opened.sha256 == problem.sha256


@pytest.mark.parametrize("change", [{"captions": np.eye(4, dtype=np.float32)}, {"h_images": 1}])
def test_one_set_is_one_array_with_one_kind_of_lists(change):
    vectors = np.eye(4, dtype=np.float32)
    given = {"images": vectors, "captions": vectors, "h_captions": 1, "h_images": 0, **change}
    with pytest.raises(ValueError, match="one_set takes one array of vectors and one h"):
        Problem(**given, positives=np.full(4, -1), one_set=True)


def test_a_direction_of_no_depth_is_left_out_and_no_table_is_made(tmp_path):
    problem = problem_of([0, 1, 2, -1, -1], h_captions=4, h_images=0)
    assert problem.directions == ("i2t",)
    unpaired = problem_of([-1] * 5, h_captions=4, h_images=0)
    assert BACKENDS["onepass"].costs(unpaired)["lists of captions"] == 0
    with pytest.raises(ValueError, match="a table has lists of both directions"):
        mine(problem, search="onepass", provenance={}, work=tmp_path / "w", output=tmp_path / "t")
