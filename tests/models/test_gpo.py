"""GPO against its definition, written as loops over items, dimensions and ranks."""

from __future__ import annotations

import math

import pytest
import torch
from torch.testing import assert_close

from aoq.models.vse_infinity import GPO, SizeAugmentation


def pooling(position_size=6, hidden_size=4):
    torch.manual_seed(0)
    return GPO(position_size, hidden_size).double()


def code_of(position, size):
    """(sin(w_0 k), cos(w_0 k), sin(w_1 k), ...) with w_j = 1 / 10000^(2j / size)."""
    waves = (position / 10000 ** (2 * j / size) for j in range(size // 2))
    return [wave(angle) for angle in waves for wave in (math.sin, math.cos)]


def gru_states(gpo, codes, suffix):
    """The states of one direction, one step at a time."""
    weight_in, weight, bias_in, bias = (
        getattr(gpo.recurrence, f"{name}_{suffix}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    )
    state, states = torch.zeros(weight.shape[1], dtype=torch.float64), []
    for code in codes:
        of_code, of_state = (weight_in @ code + bias_in).chunk(3), (weight @ state + bias).chunk(3)
        reset, update = ((a + b).sigmoid() for a, b in zip(of_code[:2], of_state[:2], strict=True))
        new = (of_code[2] + reset * of_state[2]).tanh()
        state = (1 - update) * new + update * state
        states.append(state)
    return states


def defined_weights(gpo, length):
    """theta_1, ..., theta_N: a softmax over positions of the mean of both directions, through one layer."""
    codes = torch.tensor([code_of(k, gpo.position_size) for k in range(length)], dtype=torch.float64)
    forward = gru_states(gpo, codes, "l0")
    backward = gru_states(gpo, codes.flip(0), "l0_reverse")[::-1]
    scores = [gpo.score.weight[0] @ ((f + b) / 2) / 0.1 for f, b in zip(forward, backward, strict=True)]
    exponentials = [score.exp() for score in scores]
    return [exponential / sum(exponentials) for exponential in exponentials]


def defined(gpo, fragments, mask):
    """Item by item and dimension by dimension: the k-th largest value times theta_k, summed."""
    rows = []
    for item, real in zip(fragments, mask, strict=True):
        columns = [sorted(column, reverse=True) for column in item[real].T]
        weights = defined_weights(gpo, len(item[real]))
        rows.append(torch.stack([sum(w * v for w, v in zip(weights, c, strict=True)) for c in columns]))
    return torch.stack(rows)


def test_pooling_and_its_gradients_are_those_of_the_definition(loops):
    gpo, code = pooling(), loops.code(1, 6, 7)
    mask = code.mask
    assert len(mask.sum(1).unique()) > 2
    gradients = []
    for function in (lambda x: gpo(x, mask), lambda x: defined(gpo, x, mask)):
        leaf = code.vectors.clone().requires_grad_()
        result = function(leaf)
        weighed = result * torch.arange(1.0, result.numel() + 1).view_as(result)
        gradients.append((result, *torch.autograd.grad(weighed.sum(), [leaf, *gpo.parameters()])))
    assert_close(gradients[0], gradients[1], atol=1e-9, rtol=1e-7)


def test_size_augmentation_leaves_out_a_share_of_the_real_fragments_in_training():
    torch.manual_seed(0)
    augment, mask = SizeAugmentation(0.2), torch.ones(2000, 20, dtype=torch.bool)
    mask[:, 12:] = False
    kept = augment(mask)
    assert not kept[~mask].any()
    assert float(kept[mask].float().mean()) == pytest.approx(0.8, abs=0.01)
    assert len(kept.sum(1).unique()) > 4
    assert augment.eval()(mask) is mask
    assert SizeAugmentation(0.0)(mask) is mask
    kept = SizeAugmentation(0.9)(torch.ones(500, 2, dtype=torch.bool))
    assert kept.any(1).all()
    assert (kept.sum(1) == 1).any()  # and none is left without
