"""Parts of models against their definitions: graph layers and the softmax of attention."""

import pytest
import torch
from torch.testing import assert_close

from aoq.models import packing
from aoq.models.attention import masked_softmax
from aoq.models.layers import zero_masked
from aoq.models.packing import true_places
from aoq.models.vsrn import RegionReasoning

IMAGES, REGIONS, SIZE = 3, 4, 5
MASKS = {
    "all regions are real": None,
    "some are not": torch.tensor([[True, False, True, True], [True] * 4, [False, True, False, False]]),
}


@pytest.fixture
def layer():
    layer = RegionReasoning(SIZE).double()
    generator = torch.Generator().manual_seed(0)
    for parameter in layer.parameters():
        parameter.data.uniform_(-1, 1, generator=generator)
    return layer


def reasoned(layer, images, mask):
    """v_i + BatchNorm(W_r sum over j of theta(v_i) phi(v_j) / n g(v_j)), of real regions only."""
    steps = []
    for regions, real in zip(images, mask, strict=True):
        known = regions[real]
        for v in known:
            related = sum((layer.theta(v) @ layer.phi(u)) / len(known) * layer.value(u) for u in known)
            steps.append(layer.output(related))
    result = images.clone()
    result[mask] += layer.norm(torch.stack(steps))
    return result


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_region_reasoning_is_its_definition(layer, mask, training):
    layer.train(training)
    images = zero_masked(torch.rand(IMAGES, REGIONS, SIZE, generator=torch.Generator().manual_seed(1)).double(), mask)
    everywhere = torch.ones(IMAGES, REGIONS, dtype=torch.bool) if mask is None else mask
    expected = reasoned(layer, images, everywhere)
    result = layer(images, mask, None if mask is None else true_places(mask))
    assert_close(result, expected)
    assert not (result == images)[everywhere].any()
    weights = torch.rand(result.shape, generator=torch.Generator().manual_seed(2)).double()
    ours, theirs = (
        torch.autograd.grad((values * weights).sum(), list(layer.parameters())) for values in (result, expected)
    )
    assert_close(ours, theirs)


@pytest.mark.parametrize("size", [1, 12, 15, 16, 24])
@pytest.mark.parametrize("masked", [False, True])
def test_a_softmax_of_any_size_is_torchs(size, masked):
    x = (40 * torch.randn(3, 5, size)).requires_grad_()
    mask = torch.rand(3, 1, size) < 0.7 if masked else None
    real = torch.ones(3, 5, size, dtype=torch.bool) if mask is None else mask.expand(3, 5, size)
    found = masked_softmax(x, mask, 2)
    expected = x.masked_fill(~real, -torch.inf).softmax(2).nan_to_num()  # 0 where nothing is real
    assert_close(found, expected)
    weights = torch.randn(3, 5, size)
    wanted = expected * (weights - (weights * expected).sum(2, keepdim=True))  # the gradient of sum(weights * softmax)
    assert_close(torch.autograd.grad((weights * found).sum(), x)[0], wanted, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_a_gru_over_groups_of_sequences_is_one_over_each(monkeypatch, bidirectional):
    """In any order of lengths, with the gradients; noise lies beyond a length."""
    monkeypatch.setattr(packing, "TOGETHER", 2)
    gru, lengths = torch.nn.GRU(3, 4, batch_first=True, bidirectional=bidirectional).double(), [2, 5, 1, 3, 5]
    fragments = torch.rand(5, 5, 3, generator=torch.Generator().manual_seed(0)).double()
    states, last = packing.run_over(gru, fragments, torch.tensor(lengths))
    alone = [gru(fragments[row : row + 1, :length]) for row, length in enumerate(lengths)]
    for row, length in enumerate(lengths):
        assert_close(states[row, :length], alone[row][0][0])
        assert_close(last[:, row], alone[row][1][:, 0])
        assert not states[row, length:].any()
    ours, theirs = (
        torch.autograd.grad(sum(each.square().sum() for each in values), list(gru.parameters()))
        for values in ([states, last], [part for one in alone for part in one])
    )
    assert_close(ours, theirs)
