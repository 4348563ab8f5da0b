"""NAAF against its official code; what its thresholds minimise, which words tell, when they and alpha move."""

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


@pytest.mark.parametrize("name", ["naaf_basic", "naaf_glove", "naaf_nonorm"])
def test_scores_at_test_time(golden, official, name):
    case = golden(name)
    config, keys = case.meta["config"], []
    for threshold in config["thres_safe"]:
        naaf = official(case, {**config["opt"], "thres_safe": threshold})
        assert type(naaf.model) is NAAF
        keys.append(f"out/scores_test/thres{threshold:g}")
        key = f"out/scores_test_f32/thres{threshold:g}"
        case.check(key, naaf.matrix())
        case.check(key, naaf.model.pair_similarity(*naaf.pairs()).view_as(case[key]))
        case.check(keys[-1], naaf.double().matrix())
    assert sorted(keys) == case.keys("out/scores_test/")


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


def test_estimates_replayed_by_the_official_rule(golden):
    """Estimate after every caption whose own image ranks first, from all words so far; below 200 words no threshold."""
    case = golden("naaf_train")
    for call in range(case.meta["config"]["calls"]):
        model, images, captions = training_call(case, call)
        prefix, scores = f"out/call{call}", case[f"out/call{call}/scores"]
        in_force = [{key: float(case[f"{prefix}/{key}_at_caption"][0]) for key in ("thres", "thres_safe")}]
        own, other, estimate = [], [], None
        for i in range(len(captions)):
            state = in_force[-1]
            if scores[:, i].argmax() == i:
                words = captions.vectors[i, captions.mask[i]]
                for image, found in ((i, own), (scores[:, i].argmin(), other)):
                    found.extend((words @ images.vectors[image].T).amax(1).tolist())
                if len(own) > FEWEST_WORDS:
                    estimate = Mismatch.estimate(torch.tensor(own), torch.tensor(other))
                    new = {"thres": estimate.boundary(float(model.alpha)), "thres_safe": estimate.safe}
                    state = {key: 0.7 * new[key] + 0.3 * state[key] for key in state}
            in_force.append(dict.fromkeys(state, 0.0) if len(own) < FEWEST_WORDS else state)
        for key in in_force[0]:
            case.check(f"{prefix}/{key}_at_caption", torch.tensor([state[key] for state in in_force[:-1]]))
        names = {"mean_pos": "mu", "stnd_pos": "sigma", "mean_neg": "mu_other", "stnd_neg": "sigma_other"}
        final = in_force[-1] | {theirs: getattr(estimate, ours) for theirs, ours in names.items()}
        assert sorted(f"{prefix}/final/{key}" for key in final) == case.keys(f"{prefix}/final/")
        for key, value in final.items():
            case.check(f"{prefix}/final/{key}", torch.tensor(value).view_as(case[f"{prefix}/final/{key}"]))


def test_observing_a_batch_sees_the_official_samples(golden):
    """Once a step: the statistics of the whole batch are those that the official code ends the batch with."""
    case = golden("naaf_train")
    for call in range(case.meta["config"]["calls"]):
        model, images, captions = training_call(case, call)
        model.observe(images, captions, case[f"out/call{call}/scores"])
        final = [case[f"out/call{call}/final/{key}"] for key in ("mean_pos", "stnd_pos", "mean_neg", "stnd_neg")]
        torch.testing.assert_close(model.statistics, torch.stack(final).float().flatten(), atol=1e-5, rtol=1e-5)
