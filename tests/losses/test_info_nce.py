"""InfoNCE, its weights and the sigmoid loss against loops in float64, values and gradients, and cross-entropy."""

import math
from dataclasses import replace

import pytest
import torch

from aoq.pipeline.losses import LOSSES, plateau
from aoq.pipeline.losses.companions import turn_triples, with_companions
from aoq.pipeline.losses.hinge import NO_NEGATIVE
from aoq.pipeline.losses.info_nce import LearntTemperature, adap_info_nce, info_nce, sigmoid_loss
from aoq.pipeline.losses.similarities import OfflineSimilarities, Similarities, guided_matches, positive_pairs

SIZE = 7
ROWS = torch.tensor([0, 1, 1, 2, 3, 4, 5])  # a batch with two captions of one image
ALPHA, BETA = 0.3, 1.5


def numbers(seed, size=SIZE):
    """The matrix and the offline similarities, as numbers one can differentiate by."""
    generator = torch.Generator().manual_seed(seed)
    matrix = torch.rand(size, size, generator=generator, dtype=torch.float64) * 1.4 - 0.4
    lists = torch.rand(2, size, generator=generator, dtype=torch.float64)
    return matrix.requires_grad_(), lists.requires_grad_()


def batch(matrix, lists=None, rows=ROWS, probability=None):
    offline = None if lists is None else OfflineSimilarities(*lists, match_probability=probability)
    return Similarities(matrix, positive_pairs(rows, mask_positives=True), offline)


def definition(matrix, lists, temperature, *, hardness=0.0, adaptive=False, probability=None):
    """-log of the positive's share, anchor by anchor, column by column; weights are plain numbers."""
    total = 0
    for direction, similarity in enumerate((matrix, matrix.T)):
        for a in range(SIZE):
            positive = torch.exp(similarity[a, a] / temperature)
            below = positive
            offline = None if lists is None else lists[direction, a]
            for b in range(SIZE):
                if ROWS[a] == ROWS[b]:
                    continue
                s = similarity[a, b]
                weight = math.exp(hardness * s.item())
                if adaptive and offline is not None:
                    weight *= max(0.0, BETA - (offline.item() - s.item()) / ALPHA)
                below = below + weight * torch.exp(s / temperature)
            if offline is not None:
                weight = math.exp(hardness * offline.item())
                weight *= 1.0 if probability is None else 1 - probability[direction, a].item()
                below = below + weight * torch.exp(offline / temperature)
            total = total - torch.log(positive / below)
    return total


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("negatives", ["batch", "table", "soft"])
@pytest.mark.parametrize("hardness", [0.0, 9.0])
@pytest.mark.parametrize("adaptive", [False, True], ids=["plain", "adaptive"])
def test_equals_its_definition(seed, negatives, hardness, adaptive):
    slow, fast, probability = numbers(seed), numbers(seed), None
    if negatives == "soft":
        probability = torch.rand(2, SIZE, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
        probability[0, 2] = 1.0
    scale = [torch.tensor(0.2, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    lists = None if negatives == "batch" else slow[1]
    expected = definition(slow[0], lists, scale[0], hardness=hardness, adaptive=adaptive, probability=probability)
    expected.backward()
    function, more = (adap_info_nce, {"alpha": ALPHA, "beta": BETA}) if adaptive else (info_nce, {})
    pairs = batch(fast[0], None if negatives == "batch" else fast[1], probability=probability)
    value = function(pairs, temperature=scale[1], hardness_weight=hardness, **more)
    value.total.backward()
    torch.testing.assert_close(value.total, expected)
    torch.testing.assert_close(fast[0].grad, slow[0].grad)
    torch.testing.assert_close(scale[1].grad, scale[0].grad)
    if negatives != "batch":
        torch.testing.assert_close(fast[1].grad, slow[1].grad)
    if probability is not None:
        assert ((fast[1].grad == 0) == (probability == 1.0)).all()
        assert value.figures["offline_match_probability"] == pytest.approx(probability.mean().item())


def sigmoid_definition(matrix, lists, temperature, bias, probability):
    def cost(s, z):
        return torch.log(1 + torch.exp(-z * (s / temperature + bias)))

    total = sum(cost(matrix[a, a], 1) for a in range(SIZE))
    total = total + sum(cost(matrix[a, b], -1) for a in range(SIZE) for b in range(SIZE) if ROWS[a] != ROWS[b])
    if lists is not None:
        total = total + sum((1 - probability[k, a]) * cost(lists[k, a], -1) for k in (0, 1) for a in range(SIZE))
    return total


@pytest.mark.parametrize("drawn", [False, True], ids=["batch", "table"])
@pytest.mark.parametrize("soft", [False, True], ids=["sure", "soft"])
def test_the_sigmoid_loss_equals_its_definition(drawn, soft):
    scales = torch.tensor([0.1, -5.0], dtype=torch.float64)
    slow, fast = ([*numbers(0), *(one.clone().requires_grad_() for one in scales)] for _ in range(2))
    probability = torch.rand(2, SIZE, dtype=torch.float64) if soft else torch.zeros(2, SIZE)
    expected = sigmoid_definition(slow[0], slow[1] if drawn else None, *slow[2:], probability)
    expected.backward()
    pairs = batch(fast[0], fast[1] if drawn else None, probability=probability if soft else None)
    value = sigmoid_loss(pairs, temperature=fast[2], bias=fast[3])
    value.total.backward()
    torch.testing.assert_close(value.total, expected)
    for ours, theirs in zip(fast, slow, strict=True):
        if theirs.grad is not None:
            torch.testing.assert_close(ours.grad, theirs.grad)
    assert fast[0].grad[1, 2] == 0
    assert value.figures["online"] + value.figures.get("offline", 0) == pytest.approx(value.total.item())


def test_figures_say_what_adaptive_weights_are():
    """Some take their column out, else the comparison above would not say that they do."""
    matrix, lists = numbers(0)
    weights = [
        max(0.0, BETA - (lists[direction, a].item() - similarity[a, b].item()) / ALPHA)
        for direction, similarity in enumerate((matrix, matrix.T))
        for a in range(SIZE)
        for b in range(SIZE)
        if ROWS[a] != ROWS[b]
    ]
    figures = adap_info_nce(batch(matrix, lists), alpha=ALPHA, beta=BETA).figures
    assert figures["weight_mean"].item() == pytest.approx(sum(weights) / len(weights))
    assert figures["weight_zero_share"].item() == pytest.approx(weights.count(0.0) / len(weights))
    assert 0 < weights.count(0.0) < len(weights)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("function", ["infonce", "adapinfonce", "sigmoid"])
def test_rows_without_any_negative_stay_finite(function, dtype):
    more = {"alpha": ALPHA, "beta": BETA} if function == "adapinfonce" else {}
    matrix = torch.rand(3, 3, dtype=dtype, requires_grad=True)
    nothing = torch.full((3,), NO_NEGATIVE, dtype=dtype, requires_grad=True)
    learnt = LearntTemperature(temperature=0.01, bias=-10.0 if function == "sigmoid" else None)
    pairs = Similarities(matrix, torch.ones(3, 3, dtype=torch.bool), OfflineSimilarities(nothing, nothing))
    value = LOSSES[function].function(pairs, **learnt(), **more)
    value.total.backward()
    gradients = [matrix.grad, nothing.grad, *(parameter.grad for parameter in learnt.parameters())]
    assert all(torch.isfinite(part).all() for part in (value.total, *value.figures.values(), *gradients))
    assert (nothing.grad == 0).all()
    if function != "sigmoid":
        assert value.total == 0
        assert value.figures["offline_share"] == 0
    else:
        assert (matrix.grad[~torch.eye(3).bool()] == 0).all()


def test_every_pair_of_a_triple_is_an_anchor_beside_its_own_offline_negative():
    """Image k's is caption k + 1 and caption k's is image k - 1, mod 3; other pairs of the triple are no columns."""
    triples = 3
    matrix, _ = numbers(6, 3 * triples)
    pairs = batch(matrix, rows=torch.arange(3 * triples))
    expected = torch.zeros((), dtype=torch.float64)
    for a in range(3 * triples):
        after, before = (a + triples) % (3 * triples), (a - triples) % (3 * triples)
        others = [b for b in range(3 * triples) if b % triples != a % triples]
        for s, offline in ((matrix[a], after), (matrix[:, a], before)):
            expected -= torch.log_softmax(s[[a, offline, *others]] / 0.1, dim=0)[0]
    found = with_companions(info_nce)(pairs, temperature=0.1)
    torch.testing.assert_close(found.total, expected)
    assert found.figures["offline_harder_share"] == pytest.approx(
        info_nce(turn_triples(pairs), temperature=0.1).figures["offline_harder_share"].item()
    )


def test_figures_say_how_hard_the_table_is():
    matrix = torch.tensor([[0.9, 0.2, 0.3], [0.1, 0.8, 0.2], [0.0, 0.3, 0.7]])
    drawn = [0.1, 0.2, 0.3000001]  # the last is in the batch too, and rounded otherwise there
    offline = OfflineSimilarities(torch.tensor([0.25, 0.85, 0.4]), torch.tensor(drawn))
    pairs = Similarities(matrix, torch.eye(3, dtype=torch.bool), offline)
    figures = info_nce(pairs, temperature=0.1).figures
    assert figures["offline_harder_share"] == pytest.approx(2 / 6)  # beside 0.3, 0.2, 0.3 and 0.1, 0.3, 0.3
    assert figures["offline_above_positive_share"] == pytest.approx(1 / 6)
    columns = [[0.2, 0.3, 0.25], [0.1, 0.2, 0.85], [0.0, 0.3, 0.4], [0.1, 0.0, 0.1], [0.2, 0.3, 0.2], [0.3, 0.2, 0.3]]
    shares = torch.tensor(columns).div(0.1).softmax(1)[:, -1]
    assert figures["offline_share"] == pytest.approx(shares.mean().item())
    assert figures["temperature"] == pytest.approx(0.1)
    assert "offline_harder_share" not in info_nce(replace(pairs, offline=None), temperature=0.1).figures


@pytest.mark.parametrize("similarity", [0.0, 0.9])
def test_a_collapsed_model_sits_on_the_plateau_wherever_it_is(similarity):
    """The logarithm of the number of columns; of the sigmoid, what its bias makes of that similarity."""
    same = torch.full((SIZE,), similarity)
    pairs = batch(torch.full((SIZE, SIZE), similarity), torch.stack([same, same]))
    columns = sum(math.log(1 + (row != ROWS).sum().item() + 1) for row in ROWS)
    for name, more in (("infonce", {}), ("adapinfonce", {"alpha": ALPHA, "beta": BETA}), ("sigmoid", {})):
        value = LOSSES[name].function(pairs, **more)
        assert value.figures["plateau"] == pytest.approx(value.total.item())
        if name == "infonce":
            assert value.total == pytest.approx(2 * columns, rel=1e-5)
    assert plateau(info_nce, 16) == pytest.approx(2 * 16 * math.log(17))


def test_a_learnt_temperature_starts_where_it_is_put_and_stops_at_its_bound():
    learnt = LearntTemperature(temperature=0.07, max_scale=100.0)
    assert learnt()["temperature"].item() == pytest.approx(0.07)
    (parameter,) = learnt.parameters()
    with torch.no_grad():
        parameter.fill_(9.0)
    assert learnt()["temperature"].item() == pytest.approx(0.01)
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    learnt()["temperature"].neg().backward()  # towards higher temperatures: there is a way back
    optimizer.step()
    assert learnt()["temperature"].item() > 0.01


@pytest.mark.parametrize("margin", [0.0, 0.2, -0.2])
def test_a_negative_that_the_guide_scores_above_a_positive_is_no_column(margin):
    scores = torch.rand(8, 8, generator=torch.Generator().manual_seed(0)) + 0.4 * torch.eye(8)
    found = guided_matches(scores, margin=margin)
    for i in range(8):
        for j in range(8):
            above_own = scores[i, j] > scores[i, i] - margin, scores[i, j] > scores[j, j] - margin
            assert found[i, j] == (i == j or any(above_own))
    assert 8 < found.sum() < 64
    matrix = torch.rand(8, 8, generator=torch.Generator().manual_seed(1)).requires_grad_()
    info_nce(Similarities(matrix, found), temperature=0.1).total.backward()
    assert (matrix.grad[found & ~torch.eye(8).bool()] == 0).all()
    assert (matrix.grad[~found] > 0).all()
