"""NAAF's thresholds: what they minimise, which words tell, and when they and alpha move."""

from __future__ import annotations

from statistics import NormalDist

import pytest
import torch
from torch.testing import assert_close

from aoq.models.base import Code
from aoq.models.naaf import FEWEST_WORDS, NAAF, Mismatch


def training_model(threshold=0.1, safe_threshold=0.2, **options):
    model = NAAF(feature_size=1, vocabulary_size=1, embedding_size=1, word_size=1, **options)
    model.threshold.fill_(threshold)
    model.safe_threshold.fill_(safe_threshold)
    return model.double().train()


def objective(t, alpha, m):
    """alpha * P(mismatched > t) + P(matched < t)."""
    return alpha * (1 - NormalDist(m.mu_other, m.sigma_other).cdf(t)) + NormalDist(m.mu, m.sigma).cdf(t)


DISTRIBUTIONS = [
    Mismatch(0.6, 0.1, 0.3, 0.1),
    Mismatch(0.6, 0.12, 0.3, 0.08),
    Mismatch(0.6, 0.08, 0.3, 0.12),
    Mismatch(0.3, 0.1, 0.1, 0.1 + 1e-9),
    Mismatch(0.2, 0.1, -0.3, 0.1),
]


@pytest.mark.parametrize("m", DISTRIBUTIONS, ids=str)
@pytest.mark.parametrize("alpha", [0.5, 1.0, 2.0])
def test_the_boundary_minimises_errors(m, alpha):
    """Try every t from 0 to 1 in steps of 1e-4."""
    best = min((step / 10_000 for step in range(10_001)), key=lambda t: objective(t, alpha, m))
    assert m.boundary(alpha) == pytest.approx(best, abs=2e-4)


@pytest.mark.parametrize("m", [DISTRIBUTIONS[k] for k in (1, 2)], ids=str)
def test_the_best_alpha_puts_the_boundary_where_it_is_safe(m):
    assert m.safe == pytest.approx(m.mu - 3 * m.sigma)
    assert m.boundary(m.best_alpha) == pytest.approx(m.safe, abs=1e-6)
    assert NormalDist(m.mu, m.sigma).cdf(m.safe) == pytest.approx(0.00135, abs=1e-5)


def test_there_may_be_no_boundary():
    """Nothing varies, mismatched words fit better, or missing one is worse than any false alarm."""
    assert Mismatch(0.2, 0.1, 0.4, 0.1).boundary(2.0) is None
    assert Mismatch(0.6, 0.0, 0.3, 0.1).boundary(2.0) is None
    assert Mismatch(0.6, 0.1, 0.3, 0.0).boundary(2.0) is None
    assert Mismatch(0.35, 0.05, 0.3, 0.1).boundary(100.0) is None


@pytest.mark.parametrize(
    "m",
    [Mismatch(0.6, 0.15, 0.35, 0.1), Mismatch(0.5, 0.2, 0.3, 0.1), Mismatch(0.8, 0.2, 0.5, 0.1)],
    ids=["no boundary", "safe below 0", "the lower root"],
)
def test_there_may_be_no_best_alpha(m):
    """No penalty that is tried puts the boundary at `safe`."""
    assert m.best_alpha is None
    boundaries = [m.boundary(10 ** (step / 100)) for step in range(-600, 600)]
    assert all(boundary is None or abs(boundary - m.safe) > 0.01 for boundary in boundaries)


def training_batch(loops, *, captions=48, words=12):
    """Images whose captions mostly resemble them, with NaN where fragments are masked."""
    images, texts = loops.code(1, captions, 6, size=8), loops.code(2, captions, words, size=8)
    generator = torch.Generator().manual_seed(3)
    for i in range(captions):
        regions = images.vectors[i, images.mask[i]]
        for w in texts.mask[i].nonzero().squeeze(1):
            own = regions[torch.randint(len(regions), (), generator=generator)]
            texts.vectors[i, w] = torch.nn.functional.normalize(0.5 * own + 0.8 * texts.vectors[i, w], dim=0)
    return images, texts


def samples(images, captions, similarity):
    """max_r s of the words whose own image ranks first, and of the same words against the least similar image."""
    matched, mismatched = [], []
    for i, (words, mask) in enumerate(zip(captions.vectors, captions.mask, strict=True)):
        column = similarity[:, i].tolist()
        if column.index(max(column)) == i:
            for image, found in ((i, matched), (column.index(min(column)), mismatched)):
                regions = images.vectors[image, images.mask[image]]
                found += [float(max(word @ v for v in regions)) for word in words[mask]]
    return matched, mismatched


def test_observing_moves_the_thresholds_most_of_the_way(loops):
    images, captions = training_batch(loops)
    model = training_model()
    expected = [0.1, 0.2]
    for _ in range(2):
        similarity = model.similarity(images, captions)
        matched, mismatched = samples(images, captions, similarity)
        assert FEWEST_WORDS < len(matched) < int(captions.mask.sum())
        m = Mismatch.estimate(torch.tensor(matched).double(), torch.tensor(mismatched).double())
        model.observe(images, captions, similarity)
        expected = [0.3 * old + 0.7 * new for old, new in zip(expected, [m.boundary(2.0), m.safe], strict=True)]
        assert_close(torch.stack([model.threshold, model.safe_threshold]), torch.tensor(expected).double())
        assert_close(model.statistics, torch.tensor([m.mu, m.sigma, m.mu_other, m.sigma_other]).double())
    assert 0 < model.safe_threshold < model.threshold < 1


@pytest.mark.parametrize("words", [FEWEST_WORDS, FEWEST_WORDS + 1])
def test_more_than_so_many_words_are_needed(words):
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(2, words, 4, generator=generator).double()
    mask = torch.zeros(2, words, dtype=torch.bool)
    mask[0], mask[1, 0] = True, True
    model = training_model()
    first = torch.tensor([[1.0, 1.0], [0.0, 0.0]])  # caption 0 alone has its own image first
    model.observe(Code(torch.randn(2, 3, 4, generator=generator).double()), Code(vectors, mask), first)
    assert bool(model.statistics.any()) == (words > FEWEST_WORDS)
    assert words > FEWEST_WORDS or model.threshold == model.safe_threshold == 0


def test_estimates_outside_0_and_1_count_as_0():
    """Far more spread than distance: mu+ - 3 sigma+ is below 0."""
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(2, 300, 4, generator=generator).double()
    model = training_model()
    first = torch.tensor([[1.0, 1.0], [0.0, 0.0]])
    model.observe(Code(torch.randn(2, 3, 4, generator=generator).double()), Code(vectors), first)
    m = Mismatch(*model.statistics.tolist())
    assert m.safe < 0
    assert model.safe_threshold.item() == pytest.approx(0.3 * 0.2)


@pytest.mark.parametrize("schedule", ["fixed", "adaptive"])
@pytest.mark.parametrize("epochs", [4, 10])
def test_alpha_moves_once_at_three_quarters(schedule, epochs):
    m = DISTRIBUTIONS[1]
    model = training_model(alpha_schedule=schedule, alpha=2.0)
    model.statistics.copy_(torch.tensor([m.mu, m.sigma, m.mu_other, m.sigma_other]))
    alphas = []
    for epoch in range(epochs):
        model.begin_epoch(epoch, epochs)
        alphas.append(model.alpha.item())
        model.alpha.mul_(1.5)
    turn = 3 * epochs // 4
    set_anew = [epoch for epoch in range(1, epochs) if alphas[epoch] != pytest.approx(1.5 * alphas[epoch - 1])]
    assert alphas[0] == 2.0
    assert set_anew == ([turn] if schedule == "adaptive" else [])
    if schedule == "adaptive":
        assert alphas[turn] == pytest.approx(m.best_alpha)
