"""`aoq estimate`: what mining will take, in words and for programs."""

import json

import pytest

from aoq.pipeline.mining import estimate as estimating
from tests.cli.conftest import TINY
from tests.cli.conftest import run as invoke


@pytest.fixture
def run(files):
    return lambda *arguments: invoke("estimate", *arguments)


VECTORS = ("images.npy", "captions.npy", "--per-image", 2, "--h-captions", 6, "--h-images", 4)


def test_it_says_what_mining_vectors_takes_and_leaves_nothing(run, files):
    before = sorted(files.iterdir())
    result = run(*VECTORS)
    shown = " ".join(result.stdout.split())
    sizes = "15 images, 30 captions, 7 dimensions"
    for words in (sizes, "search onepass: ", "time, about", "at most 1.5 GB, and 1.3 kB"):
        assert words in shown
    assert "searching with" not in shown
    assert sorted(files.iterdir()) == before


def test_programs_get_every_part(run):
    said = json.loads(run(*VECTORS, "--json", "--search", "faiss-flat", "--memory-mb", 300).stdout)
    sizes = {"images": 15, "captions": 30, "dimensions": 7}
    assert said["shape"] == {**sizes, "most_captions": 2, "h_captions": 6, "h_images": 4}
    assert (said["search"], said["memory_bytes"]) == ("faiss-flat", 300_000_000)
    assert said["total_seconds"] == pytest.approx(sum(said["seconds"].values()))


def test_it_says_how_hard_offline_negatives_will_be(run):
    """20 captions and 8 images a list, beside 300 and 60 in batches of 16."""
    shown = run("--experiment", TINY).stdout
    drawn = "the hardest in a random batch of 16 has rank 19 of 300 captions; draws from the first 20, of which about"
    assert drawn in shown
    assert "has rank 4 of 60 images; draws from the first 8, of which about 53% are easier" in shown
    said = json.loads(run("--experiment", TINY, "--override", 'sampling.hardness="auto"', "--json").stdout)
    assert said["drawing"][0].endswith("draws from the first 4, about 4.7 times harder")


@pytest.mark.parametrize(("control", "steps"), [('"items"', 7 * 7), ("2.5", 8 * 19), ("2", 6 * 19)])
def test_a_control_of_equal_items_or_time_has_steps_of_its_own(run, control, steps):
    """Seven batches of 48 of 300 captions, in one epoch of warm-up and three times two others; or longer."""
    said = json.loads(run("--experiment", TINY, "--override", f"second_round.control={control}", "--json").stdout)
    assert said["steps"] == {"round one": 2 * 19, "round two": 3 * 19, "control": steps}


def test_a_table_that_is_not_searched_for_still_has_draws(run):
    refresh = "refresh.rounds=1, refresh.h_captions=9, refresh.h_images=5"
    said = json.loads(run("--experiment", TINY, "--override", refresh, "--json").stdout)
    assert said.keys() == {"total_seconds", "steps", "drawing"}
    assert [*said["steps"].values()] == [2 * 19, 3 * 19, 3 * 19]  # of both rounds before, and of the student
    assert [*said["steps"]][1].startswith("round two of tiny@refresh.rounds=0,")
    assert said["drawing"][0].startswith(f"the table is made from {TINY}@")
    assert "of 300 captions; draws from the first 9, about 2.1 times harder" in said["drawing"][1]
    assert "of 60 images; draws from the first 5, of which about 25% are easier" in said["drawing"][2]
    shown = run("--experiment", TINY, "--override", refresh).stdout
    assert "57 steps of training" in shown
    assert "memory" not in shown


def test_it_says_when_an_exact_search_takes_a_day(run, monkeypatch):
    monkeypatch.setattr(estimating, "LEAST_PAIRS", 1)
    assert "an exact search takes a day at about" in run(*VECTORS).stdout
    assert json.loads(run(*VECTORS, "--search", "ivf", "--json").stdout)["affordable_images"] > 1000
