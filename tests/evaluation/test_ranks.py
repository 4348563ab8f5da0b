"""Ranks come back as they were written; others are refused."""

from itertools import permutations

import numpy as np
import pytest

from aoq.pipeline.evaluation.ranks import chance_level, read_ranks, write_ranks
from aoq.pipeline.evaluation.retrieval import Ranks, evaluate_similarity

RANKS = Ranks(np.array([0, 5, 2]), np.array([2, 0, 1, 1, 0, 2]))


def test_they_come_back_and_others_are_refused(tmp_path):
    path = tmp_path / "ranks.parquet"
    write_ranks(path, RANKS)
    found = read_ranks(path, images=3, captions=6)
    assert (found.i2t.tolist(), found.t2i.tolist()) == (RANKS.i2t.tolist(), RANKS.t2i.tolist())
    for images, captions in ((2, 6), (3, 5), (6, 3)):
        with pytest.raises(ValueError, match=f"it does not have {images} images and {captions} captions"):
            read_ranks(path, images=images, captions=captions)
    for beyond in ([0, 6, 1], [0, -1, 1]):
        write_ranks(path, Ranks(np.array(beyond), RANKS.t2i))
        with pytest.raises(ValueError, match="it does not have 3 images and 6 captions"):
            read_ranks(path, images=3, captions=6)
    stored = bytearray(path.read_bytes())
    stored[8] ^= 1
    path.write_bytes(stored)
    with pytest.raises(ValueError, match=r"ranks\.parquet is damaged or not the ranks on dev of a training"):
        read_ranks(path, images=3, captions=6)


PAIRINGS = {
    "five captions each": (np.repeat(np.arange(30), 5), None),
    "unequal": (np.array([0, 0, 0, 1, 2, 2, 3, 3, 3, 3, 4, 5, 6, 7, 8, 9, 10, 11]), None),
    "copies": (np.repeat(np.arange(20), 2), np.arange(20) // 2),
}


@pytest.mark.parametrize("name", PAIRINGS)
def test_chance_is_the_mean_over_random_similarities(name):
    image_of, identity = PAIRINGS[name]
    rng, shape = np.random.default_rng(0), (image_of.max() + 1, len(image_of))
    rsums = [evaluate_similarity(rng.random(shape), image_of, identity)["rsum"] for _ in range(600)]
    chance = chance_level(image_of, identity)
    assert chance.rsum == pytest.approx(np.mean(rsums), abs=4 * np.std(rsums) / 600**0.5)
    assert 0.9 < chance.deviation / np.std(rsums) < 2**0.5 + 0.1


def test_chance_is_that_of_all_orders():
    """One query of 7 candidates, 2 of them right: the fraction of orders with one of these in the first K."""
    image_of = np.array([0, 0, 1, 1, 1, 1, 1])
    orders = list(permutations(range(7)))
    of_first, of_other = (
        sum(np.mean([bool({*order[:k]} & right) for order in orders]) for k in (1, 5, 10))
        for right in ({0, 1}, {2, 3, 4, 5, 6})
    )
    t2i = 0.5 + 1 + 1
    assert chance_level(image_of).rsum == pytest.approx(100 * ((of_first + of_other) / 2 + t2i))


def test_a_handful_of_images_cannot_tell():
    few = chance_level(np.repeat(np.arange(2), 5))
    assert not few.explains(600.0)
    assert not few.explains(few.rsum)
    many = chance_level(np.repeat(np.arange(1000), 5))
    assert many.explains(3.2)
    assert not many.explains(5.0)
