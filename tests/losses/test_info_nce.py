"""InfoNCE, its weights and the sigmoid loss against loops in float64, values and gradients, and cross-entropy."""

import math
from dataclasses import replace

import pytest
import torch

from aoq.pipeline.losses import LOSSES, plateau
from aoq.pipeline.losses.distillation import batch_distillation
from aoq.pipeline.losses.hinge import NO_NEGATIVE
from aoq.pipeline.losses.info_nce import LearntTemperature, info_nce, sigmoid_loss
from aoq.pipeline.losses.similarities import OfflineSimilarities, Similarities, guided_matches, positive_pairs
from tests.losses.definitions import ROWS, SIZE, check_value, clipped_weight, logit_loss, numbers_of, random_world

NUMBERS = [("infonce", "hardness_weight", 0.0), ("infonce", "hardness_weight", 9.0)]
NUMBERS += [("adapinfonce", "hardness_weight", 0.0), ("adapinfonce", "hardness_weight", 9.0), ("sigmoid", "bias", -5.0)]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("drawn", ["batch", "table", "soft", "own", "shared"])
@pytest.mark.parametrize(("name", "number", "value"), NUMBERS)
def test_equals_its_definition(seed, drawn, name, number, value):
    world, leaves = random_world(seed, drawn)
    numbers = {"temperature": torch.tensor(0.2, dtype=torch.float64, requires_grad=True), number: value}
    if number == "bias":
        numbers[number] = torch.tensor(value, dtype=torch.float64, requires_grad=True)
    leaves += [one for one in numbers.values() if torch.is_tensor(one)]
    found = LOSSES[name].function(world.pairs, **numbers_of(name), **numbers)
    check_value(found.total, logit_loss(name, world, **numbers), leaves)
    assert all(math.isfinite(figure) for figure in found.figures.values())
    if drawn == "soft":
        assert found.figures["offline_match_probability"] == pytest.approx(world.probability.mean().item())
    if name == "sigmoid":
        assert found.figures["online"] + found.figures.get("offline", 0) == pytest.approx(found.total.item())


def test_figures_say_what_adaptive_weights_are():
    """Some take their column out, else the comparison above would not say that they do."""
    world, _ = random_world(0, "table")
    weights = [
        clipped_weight(world.drawn(side, a)[0], similarity)
        for side, (matrix, is_positive) in enumerate(world.pairs.directions)
        for a in range(SIZE)
        for similarity in matrix[a, ~is_positive[a]]
    ]
    figures = LOSSES["adapinfonce"].function(world.pairs, **numbers_of("adapinfonce")).figures
    assert figures["weight_mean"].item() == pytest.approx(sum(weights) / len(weights))
    assert figures["weight_zero_share"].item() == pytest.approx(weights.count(0.0) / len(weights))
    assert 0 < weights.count(0.0) < len(weights)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("function", ["infonce", "adapinfonce", "sigmoid"])
def test_rows_without_any_negative_stay_finite(function, dtype):
    matrix = torch.rand(3, 3, dtype=dtype, requires_grad=True)
    nothing = torch.full((3,), NO_NEGATIVE, dtype=dtype, requires_grad=True)
    learnt = LearntTemperature(temperature=0.01, bias=-10.0 if function == "sigmoid" else None)
    pairs = Similarities(matrix, torch.ones(3, 3, dtype=torch.bool), OfflineSimilarities(nothing, nothing))
    value = LOSSES[function].function(pairs, **learnt(), **numbers_of(function))
    value.total.backward()
    gradients = [matrix.grad, nothing.grad, *(parameter.grad for parameter in learnt.parameters())]
    assert all(torch.isfinite(part).all() for part in (value.total, *value.figures.values(), *gradients))
    assert (nothing.grad == 0).all()
    if function != "sigmoid":
        assert value.total == 0
        assert value.figures["offline_share"] == 0
    else:
        assert (matrix.grad[~torch.eye(3).bool()] == 0).all()


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
    offline = OfflineSimilarities(*torch.full((2, SIZE), similarity))
    positive = positive_pairs(ROWS, mask_positives=True)
    pairs = Similarities(torch.full((SIZE, SIZE), similarity), positive, offline)
    columns = sum(math.log(1 + (row != ROWS).sum().item() + 1) for row in ROWS)
    for name in ("infonce", "adapinfonce", "sigmoid"):
        value = LOSSES[name].function(pairs, **numbers_of(name))
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


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan"), float("inf")])
def test_what_is_no_temperature_is_refused(temperature):
    pairs = Similarities(torch.zeros(3, 3), torch.eye(3).bool())
    for loss in (info_nce, sigmoid_loss):
        with pytest.raises(ValueError, match="temperatures must be above 0 and finite; got"):
            loss(pairs, temperature=temperature)
    with pytest.raises(ValueError, match="temperatures must be above 0 and finite; got"):
        batch_distillation(pairs.matrix, pairs.matrix, temperature=temperature)
