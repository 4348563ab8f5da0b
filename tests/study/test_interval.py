"""The bootstrap: its replicates written as loops, what it finds where the truth is known, folds."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.evaluation.retrieval import K, Ranks, evaluate_similarity, folded_ranks, summarise
from pipeline.study.interval import rsum_intervals

IMAGE_OF = np.array([0, 0, 1, 2, 2, 2, 3])


def ranks(rng, images=4, image_of=IMAGE_OF, most=15):
    return Ranks(rng.integers(0, most, images), rng.integers(0, most, len(image_of)))


def rsum(one, image_of, times):
    """Of the images drawn so many times, each with its captions."""
    queries = [image for image, count in enumerate(times) for _ in range(count)]
    captions = [caption for image in queries for caption in np.flatnonzero(image_of == image)]
    i2t = sum(np.mean([one.i2t[image] < k for image in queries]) for k in K)
    return 100 * (i2t + sum(np.mean([one.t2i[caption] < k for caption in captions]) for k in K))


def test_equals_replicates_written_as_loops():
    rng = np.random.default_rng(0)
    baseline, arm = [ranks(rng) for _ in range(3)], [ranks(rng) for _ in range(3)]
    found = rsum_intervals({"arm": arm}, baseline, IMAGE_OF, rng=np.random.default_rng(5), replicates=50)
    rng = np.random.default_rng(5)
    times, seeds = (rng.multinomial(n, np.full(n, 1 / n), size=50) for n in (4, 3))
    drawn = []
    for image_times, seed_times in zip(times, seeds, strict=True):
        gains = [rsum(a, IMAGE_OF, image_times) - rsum(b, IMAGE_OF, image_times) for a, b in zip(arm, baseline)]  # noqa: B905
        drawn.append(sum(count * gain for count, gain in zip(seed_times, gains, strict=True)) / 3)
    assert found["arm"] == pytest.approx(tuple(np.percentile(drawn, [2.5, 97.5])))


def test_every_image_once_is_the_metric():
    one = ranks(np.random.default_rng(1))
    assert rsum(one, IMAGE_OF, [1, 1, 1, 1]) == pytest.approx(summarise(one)["rsum"])


def test_equal_arms_have_no_difference_and_better_ones_are_found():
    rng = np.random.default_rng(2)
    image_of = np.repeat(np.arange(60), 5)
    baseline = [ranks(rng, 60, image_of, most=30) for _ in range(3)]
    better = [Ranks(one.i2t // 2, one.t2i // 2) for one in baseline]
    found = rsum_intervals({"same": baseline, "better": better}, baseline, image_of, rng=rng, replicates=300)
    assert found["same"] == (0.0, 0.0)
    gain = np.mean([summarise(a)["rsum"] - summarise(b)["rsum"] for a, b in zip(better, baseline, strict=True)])
    low, high = found["better"]
    assert 0 < low < gain < high


def test_folded_ranks_give_the_folded_metrics():
    rng = np.random.default_rng(3)
    similarity, image_of = rng.normal(size=(6, 12)), np.repeat(np.arange(6), 2)
    for folds in (1, 3):
        found = summarise(folded_ranks(similarity, image_of, folds=folds))
        expected = evaluate_similarity(similarity, image_of, folds=folds)
        for column in ("rsum", "i2t_r1", "t2i_r5", "i2t_meanr"):
            assert found[column] == pytest.approx(expected[column])
