"""Hand-written backward passes against their formulas, differentiated by autograd."""

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from aoq.models import fused
from aoq.models.fused import clipped_unit, gated, linear_cross_entropy, projected_difference, squared_norm


def made(*shapes):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(*shape, dtype=torch.float64, generator=generator).requires_grad_() for shape in shapes]


def assert_same(function, formula, inputs):
    """Compare values, and gradients of a weighted sum."""
    result, expected = function(*inputs), formula(*inputs)
    assert_close(result, expected)
    weights = torch.randn(expected.shape, dtype=expected.dtype)
    found, wanted = (torch.autograd.grad((out * weights).sum(), inputs) for out in (result, expected))
    assert_close(found, wanted)


@pytest.mark.parametrize("slope", [0.1, 1.0])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_clipped_unit(dim, slope):
    def formula(x):
        clipped = F.leaky_relu(x, slope)
        return clipped / clipped.norm(dim=dim, keepdim=True)

    assert_same(lambda x: clipped_unit(x, dim, slope), formula, made((3, 4, 2)))


def test_clipped_unit_of_a_zero_vector_is_zero_and_passes_the_gradient_on():
    x = torch.zeros(2, 3, requires_grad=True)
    clipped_unit(x, 1, 1.0).sum().backward()
    assert torch.equal(clipped_unit(x, 1, 1.0), torch.zeros(2, 3))
    assert torch.equal(x.grad, torch.ones(2, 3))


@pytest.mark.parametrize(
    ("pattern", "dim", "fragments"), [("isr", 3, (2, 5, 4)), ("cisr", 3, (3, 2, 5, 4)), ("cvw", 1, (3, 4, 6))]
)
def test_squared_norm(pattern, dim, fragments):
    """`fragments` are the vectors of a symmetric Gram matrix; the norm is that of their weighted sum."""

    def formula(weights, vectors):
        axes = pattern.replace(pattern[-2], "")
        attended = torch.einsum(f"cwir,{axes}d->{'cwid' if dim == 3 else 'cird'}", weights, vectors)
        return attended.square().sum(-1)

    def function(weights, vectors):
        return squared_norm(weights, vectors @ vectors.transpose(-1, -2), pattern)

    assert_same(function, formula, made((3, 4, 2, 5), fragments))


@pytest.mark.parametrize("cached", [1, 14, 10_000])
@pytest.mark.parametrize("queries", [1, 5])
def test_projected_difference(monkeypatch, queries, cached):
    """Queries are common or each their own; the work is cut into any number of parts."""
    monkeypatch.setattr(fused, "CACHE", cached)

    def formula(weights, context, queries, weight, bias):
        return F.linear((weights @ context - queries).square(), weight, bias)

    inputs = made((5, 3, 4), (5, 4, 7), (queries, 3, 7), (2, 7), (2,))
    assert_same(projected_difference, formula, inputs)


@pytest.mark.parametrize("cached", [1, 50, 10_000])
@pytest.mark.parametrize("shape", [(3, 1, 4, 5), (1, 6, 4, 5), (3, 6, 4, 5)])
def test_gated(monkeypatch, shape, cached):
    monkeypatch.setattr(fused, "CACHE", cached)

    def formula(queries, both):
        gate, update = both.chunk(2, dim=-1)
        return gate.sigmoid() * queries + (1 - gate.sigmoid()) * update.tanh()

    assert_same(lambda queries, both: gated(queries, *both.chunk(2, dim=-1)), formula, made(shape, (3, 6, 4, 10)))


@pytest.mark.parametrize("rows", [1, 3, 7, 128])
def test_linear_cross_entropy(rows, monkeypatch):
    monkeypatch.setattr(fused, "ROWS", rows)
    labels = torch.tensor([4, 0, 4, 2, 1, 3, 0])

    def formula(states, weight, bias):
        chances = (states @ weight.T + bias).exp()
        chances = chances / chances.sum(1, keepdim=True)
        return -sum(chances[row, label].log() for row, label in enumerate(labels.tolist()))

    assert_same(lambda *inputs: linear_cross_entropy(*inputs, labels), formula, made((7, 3), (5, 3), (5,)))


def test_linear_cross_entropy_of_large_logits_is_finite():
    states = torch.tensor([[1e4]], requires_grad=True)
    loss = linear_cross_entropy(states, torch.tensor([[1.0], [-1.0]]), torch.zeros(2), torch.tensor([1]))
    loss.backward()
    assert_close((loss.detach(), states.grad), (torch.tensor(2e4), torch.tensor([[2.0]])))
