"""Many right answers: metrics against sorted lists, and against the eccv_caption package."""

import sys
import warnings
from functools import partial

import numpy as np
import pytest

from aoq.pipeline.data.annotations import ScoredPairs
from aoq.pipeline.evaluation.annotated import judgement_agreement, pmrp, relevant, summarise_relevance


def ranked(scores, right):
    """All candidates, best first; of equals those that are not right come first."""
    return sorted(range(len(scores)), key=lambda candidate: (-scores[candidate], candidate in right))


def slow(similarity, right_of):
    rows = []
    for scores, right in zip(similarity, right_of, strict=True):
        if right:
            order = ranked(scores, right)
            is_right = [candidate in right for candidate in order]
            head = is_right[: len(right)]
            precision = [sum(is_right[: r + 1]) / (r + 1) for r in range(len(right))]
            average = sum(p for p, hit in zip(precision, head, strict=True) if hit) / len(right)
            best = [True] * len(right) + [False] * 10
            gain, most = (sum(hit / np.log2(r + 2) for r, hit in enumerate(hits[:10])) for hits in (is_right, best))
            recalls = [any(is_right[:k]) for k in (1, 5, 10)]
            rows.append([sum(head) / len(right), average, *recalls, gain / most, 1 / (is_right.index(True) + 1)])
    names = ["r_precision", "map_r", "r1", "r5", "r10", "ndcg_10", "mrr"]
    return dict(zip(names, 100 * np.mean(rows, axis=0), strict=True))


@pytest.mark.parametrize("seed", range(2))
def test_equals_sorted_lists(seed):
    rng = np.random.default_rng(seed)
    similarity = rng.integers(0, 30, (8, 40)) / 7  # with ties
    right_of = [set(rng.choice(40, size=rng.integers(0, 12), replace=False).tolist()) for _ in range(8)]
    right_of[0] = {3}
    pairs = [(query, candidate) for query, ids in enumerate(right_of) for candidate in ids]
    mixed = rng.permutation(pairs + pairs[:5])
    assert summarise_relevance(similarity, relevant("i2t", mixed, 8, 40)) == pytest.approx(slow(similarity, right_of))
    mixed = mixed[:, ::-1]
    assert summarise_relevance(similarity, relevant("t2i", mixed, 40, 8)) == pytest.approx(slow(similarity, right_of))


def slow_pmrp(similarity, image_of, labels, direction):
    """PCME's, item by item."""
    kept = [image for image in range(len(labels)) if labels[image].any()]
    captions = [caption for caption in range(len(image_of)) if image_of[caption] in kept]
    by_zeta = []
    for zeta in (0, 1, 2):
        precision = []
        for query in kept if direction == "i2t" else captions:
            own = query if direction == "i2t" else image_of[query]
            gallery = captions if direction == "i2t" else kept
            source = [image_of[item] if direction == "i2t" else item for item in gallery]
            right = {n for n, image in enumerate(source) if (labels[own] != labels[image]).sum() <= zeta}
            scores = [similarity[query, item] if direction == "i2t" else similarity[item, query] for item in gallery]
            precision.append(sum(n in right for n in ranked(scores, right)[: len(right)]) / len(right))
        by_zeta.append(np.mean(precision))
    return 100 * np.mean(by_zeta)


def test_pmrp_is_pcmes():
    rng = np.random.default_rng(2)
    image_of = np.repeat(np.arange(10), 3)
    labels = rng.random((10, 6)) < 0.3
    labels[4] = False
    similarity = rng.normal(size=(10, 30))
    found = pmrp(similarity, image_of, labels)
    for direction in ("i2t", "t2i"):
        assert found[f"{direction}_pmrp"] == pytest.approx(slow_pmrp(similarity, image_of, labels, direction))
    halves = [pmrp(similarity[a : a + 5, 3 * a : 3 * a + 15], image_of[:15], labels[a : a + 5]) for a in (0, 5)]
    mean = {name: np.mean([half[name] for half in halves]) for name in found}
    assert pmrp(similarity, image_of, labels, folds=2) == pytest.approx(mean)


def test_the_eccv_caption_package_finds_the_same():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it would rather have ujson
        from eccv_caption._metrics import compute_eccv_metrics
    rng = np.random.default_rng(3)
    similarity = rng.normal(size=(12, 50))
    right_of = {query: rng.choice(50, size=rng.integers(1, 9), replace=False).tolist() for query in range(12)}
    theirs = compute_eccv_metrics(dict(enumerate((-similarity).argsort(axis=1).tolist())), right_of)
    pairs = np.array([(query, candidate) for query, ids in right_of.items() for candidate in ids])
    found = summarise_relevance(similarity, relevant("i2t", pairs, 12, 50))
    ours = {"eccv_map_at_r": found["map_r"], "eccv_rprecision": found["r_precision"], "eccv_r1": found["r1"]}
    assert ours == pytest.approx({name: 100 * value for name, value in theirs.items()})


def right_answers(*pairs):
    return relevant("i2t", np.array(pairs, int).reshape(-1, 2), 2, 3)


@pytest.mark.parametrize(
    ("measure", "given", "message"),
    [
        (summarise_relevance, (np.ones((2, 3)), right_answers()), "no query has a right answer"),
        (summarise_relevance, (np.full((2, 3), np.nan), right_answers((1, 0))), "query 1 and candidate 0 is nan"),
        (pmrp, (np.ones((2, 2)), np.arange(2), np.zeros((2, 4), bool)), "none of images 0 to 1 shows any class"),
        (partial(pmrp, folds=2), (np.ones((3, 3)), np.arange(3), np.ones((3, 4), bool)), "do not divide into 2 folds"),
    ],
)
def test_what_cannot_be_measured_is_said(measure, given, message):
    with pytest.raises(ValueError, match=message):
        measure(*given)


def test_correlations_and_errors_that_are_none():
    similarity = np.array([[0.9, 0.8, 0.1], [0.2, 0.3, 0.4], [0.1, 0.2, 0.3]])
    image_of = np.array([0, 1, 2])  # captions 1 and 2 find images 0 and 1
    pairs = np.array([[0, 0, 4.0], [0, 1, 3.0], [0, 1, 4.0], [1, 2, 1.0], [2, 2, 2.0]])
    judged = ScoredPairs(pairs[:, 0].astype(np.int64), pairs[:, 1].astype(np.int64), pairs[:, 2])
    found = judgement_agreement(similarity, image_of, judged)
    # scores 0.9, 0.8, 0.4, 0.3 beside means of 4, 3.5, 1, 2: one of six pairs is discordant
    assert found["kendall"] == pytest.approx(100 * 4 / 6)
    assert found["spearman"] == pytest.approx(100 * (1 - 6 * 2 / (4 * 15)))
    assert (found["judged"], found["false_hits"], found["right_share"]) == (4, 2, 50.0)


def test_what_cannot_be_correlated_is_said(monkeypatch):
    rows = np.array([0, 1])
    with pytest.raises(ValueError, match="nothing to correlate"):
        judgement_agreement(np.eye(2), rows, ScoredPairs(rows, rows, np.array([2.0, 2.0])))
    monkeypatch.setitem(sys.modules, "scipy.stats", None)
    with pytest.raises(ImportError, match=r'judgements needs scipy .*`pip install "aoq\[eccv\]"`'):
        judgement_agreement(np.array([[0.1, 0.2], [0.3, 0.4]]), rows, ScoredPairs(rows, rows, np.array([0.0, 1.0])))
