"""NAAF against its official code; what its thresholds minimise, which words tell, when they and alpha move."""

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


def observed(words):
    """A model that has seen one caption of this many words with its own image first, and a caption with another."""
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(2, words, 4, generator=generator).double()
    mask = torch.zeros(2, words, dtype=torch.bool)
    mask[0], mask[1, 0] = True, True
    model = training_model()
    first = torch.tensor([[1.0, 1.0], [0.0, 0.0]])
    model.observe(Code(torch.randn(2, 3, 4, generator=generator).double()), Code(vectors, mask), first)
    return model


def test_more_than_so_many_words_are_needed():
    few, enough = observed(FEWEST_WORDS), observed(FEWEST_WORDS + 1)
    assert (few.threshold.item(), few.safe_threshold.item()) == pytest.approx((0.1, 0.2))
    assert (bool(few.statistics.any()), bool(enough.statistics.any())) == (False, True)
    # Estimates outside [0, 1] count as 0: far more spread than distance, and mu+ - 3 sigma+ is below 0.
    assert Mismatch(*enough.statistics.tolist()).safe < 0
    assert enough.safe_threshold.item() == pytest.approx(0.3 * 0.2)
    code = Code(torch.randn(2, 3, 4).double())  # as in the short last batch of an epoch
    enough.observe(code, code, torch.eye(2))
    assert enough.safe_threshold.item() == pytest.approx(0.3 * 0.2)


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


def training_call(case, call):
    """Image and caption embeddings of one batch, and the model in training mode."""
    images, words = (case[f"in/{side}_emb{call}"].clone().requires_grad_() for side in ("img", "cap"))
    mask = torch.arange(words.shape[1]) < case[f"in/lengths{call}"].unsqueeze(1)
    options = case.meta["config"]["opt"]
    sizes = {"feature_size": 1, "vocabulary_size": 1, "embedding_size": words.shape[2], "word_size": 1}
    model = NAAF(**sizes, temperature=options["lambda_softmax"], alpha=options["alpha"]).train()
    return model, Code(images), Code(words, mask)


def test_training_scores_losses_and_gradients(golden, triplet):
    """Each caption scored with the threshold in force when the official code came to it."""
    case = golden("naaf_train")
    for call in range(case.meta["config"]["calls"]):
        model, images, captions = training_call(case, call)
        columns = []
        for i, threshold in enumerate(case[f"out/call{call}/thres_at_caption"]):
            model.threshold = threshold.float()
            columns.append(model.similarity(images, captions[i : i + 1]))
        scores = torch.cat(columns, dim=1)
        case.check(f"out/call{call}/scores", scores)
        loss = triplet(scores, hardest=True)
        case.check(f"out/call{call}/loss", loss)
        loss.backward()
        case.check(f"out/call{call}/grad/img_emb", images.vectors.grad)
        case.check(f"out/call{call}/grad/cap_emb", captions.vectors.grad)


def test_observing_sees_the_official_samples_and_moves_the_thresholds_most_of_the_way(golden):
    """Once a step: the statistics of the whole batch are those that the official code ends the batch with."""
    case = golden("naaf_train")
    for call in range(case.meta["config"]["calls"]):
        model, images, captions = training_call(case, call)
        final = [case[f"out/call{call}/final/{key}"] for key in ("mean_pos", "stnd_pos", "mean_neg", "stnd_neg")]
        expected = [0.0, 0.0]
        for _ in range(2):
            model.observe(images, captions, case[f"out/call{call}/scores"])
            assert_close(model.statistics, torch.stack(final).float().flatten(), atol=1e-5, rtol=1e-5)
            m = Mismatch(*model.statistics.tolist())
            new = [m.boundary(2.0), m.safe]
            expected = [0.3 * old + 0.7 * one for old, one in zip(expected, new, strict=True)]
            assert [model.threshold.item(), model.safe_threshold.item()] == pytest.approx(expected, abs=1e-5)
        assert 0 < model.safe_threshold < model.threshold < 1
