"""Intervals over images and seeds against loops and Student's t, what they find where the truth is known, folds."""

import numpy as np
import pytest
from scipy import stats

from aoq.pipeline.evaluation.retrieval import K, Ranks, evaluate_similarity, folded_ranks, summarise
from aoq.pipeline.evaluation.significance import compare_runs, metric_intervals, rsum_intervals

IMAGE_OF = np.array([0, 0, 1, 2, 2, 2, 3])


def ranks(rng, images=4, image_of=IMAGE_OF, most=15):
    return Ranks(rng.integers(0, most, images), rng.integers(0, most, len(image_of)))


def recall(one, image_of, times, direction, k):
    """Count each image as often as it was drawn, with its captions."""
    queries = [image for image, count in enumerate(times) for _ in range(count)]
    if direction == "t2i":
        queries = [caption for image in queries for caption in np.flatnonzero(image_of == image)]
    return 100 * np.mean([getattr(one, direction)[query] < k for query in queries])


def rsum(one, image_of, times):
    return sum(recall(one, image_of, times, direction, k) for direction in ("i2t", "t2i") for k in K)


def test_intervals_over_seeds_are_students():
    """The images are alike, so that only the seeds differ."""
    rng = np.random.default_rng(0)
    for n in (3, 5, 11, 12):
        alike = [Ranks(np.full(4, most), np.full(7, most)) for most in rng.choice([0, 3, 7, 12], n)]
        found = rsum_intervals({"arm": alike}, [alike[0]] * n, IMAGE_OF, rng=rng, replicates=50)["arm"]
        gains = [summarise(one)["rsum"] - summarise(alike[0])["rsum"] for one in alike]
        scale, mean = np.std(gains, ddof=1) / np.sqrt(n), np.mean(gains)
        assert found == pytest.approx(stats.t.interval(0.95, min(n - 1, 10), mean, scale), abs=0.001 * scale)
    for n in (1, 2):
        assert rsum_intervals({"arm": alike[:n]}, alike[:n], IMAGE_OF, rng=rng) == {}
    assert rsum_intervals({}, alike, IMAGE_OF, rng=rng) == {}


def test_intervals_over_images_equal_replicates_written_as_loops():
    baseline, arm = [ranks(np.random.default_rng(0))] * 3, [ranks(np.random.default_rng(1))] * 3
    found = rsum_intervals({"arm": arm}, baseline, IMAGE_OF, rng=np.random.default_rng(5), replicates=50)["arm"]
    times = np.random.default_rng(5).multinomial(4, np.full(4, 0.25), size=50)
    drawn = [rsum(arm[0], IMAGE_OF, counts) - rsum(baseline[0], IMAGE_OF, counts) for counts in times]
    gain = summarise(arm[0])["rsum"] - summarise(baseline[0])["rsum"]
    assert found == pytest.approx((gain - 1.96 * np.std(drawn, ddof=1), gain + 1.96 * np.std(drawn, ddof=1)))


def test_a_runs_intervals_equal_replicates_written_as_loops():
    one = ranks(np.random.default_rng(4))
    found = metric_intervals(one, IMAGE_OF, rng=np.random.default_rng(5), replicates=60)
    times = np.random.default_rng(5).multinomial(4, np.full(4, 0.25), size=60)
    for direction in ("i2t", "t2i"):
        for k in K:
            drawn = [recall(one, IMAGE_OF, counts, direction, k) for counts in times]
            assert found[f"{direction}_r{k}"] == pytest.approx(tuple(np.percentile(drawn, [2.5, 97.5])))
    assert found["rsum"] == pytest.approx(
        tuple(np.percentile([rsum(one, IMAGE_OF, counts) for counts in times], [2.5, 97.5]))
    )


def test_two_runs_are_compared_on_the_same_queries():
    rng = np.random.default_rng(6)
    image_of = np.repeat(np.arange(40), 5)
    one = ranks(rng, 40, image_of, most=30)
    same, better = compare_runs(one, one, image_of, rng=rng), Ranks(one.i2t // 3, one.t2i // 3)
    assert (same.difference, same.interval, same.p) == (0.0, (0.0, 0.0), 1.0)
    found = compare_runs(better, one, image_of, rng=rng)
    assert found.difference == pytest.approx(summarise(better)["rsum"] - summarise(one)["rsum"])
    assert found.interval[0] < found.difference < found.interval[1]
    assert found.p < 0.01


def test_equal_runs_are_seldom_found_different():
    """Under no difference, p is below 0.1 in about a tenth of trials."""
    rng = np.random.default_rng(7)
    image_of = np.repeat(np.arange(30), 3)
    small = [
        compare_runs(ranks(rng, 30, image_of), ranks(rng, 30, image_of), image_of, rng=rng, replicates=100).p < 0.1
        for _ in range(200)
    ]
    assert 0.04 < np.mean(small) < 0.17


def test_folded_ranks_give_the_folded_metrics():
    rng = np.random.default_rng(3)
    similarity, image_of = rng.normal(size=(6, 12)), np.repeat(np.arange(6), 2)
    for folds in (1, 3):
        found = summarise(folded_ranks(similarity, image_of, folds=folds))
        expected = evaluate_similarity(similarity, image_of, folds=folds)
        for column in ("rsum", "i2t_r1", "t2i_r5", "i2t_meanr"):
            assert found[column] == pytest.approx(expected[column])
