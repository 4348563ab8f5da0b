"""Functions with their own backward passes, which compute and store less than autograd.

Each equals the formula in its docstring, with its gradient; none has a second derivative.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

CACHE = 2**18  # numbers at a time: that many hardly leave the cache
ROWS = 128  # of logits at a time: with fewer, products become slow


def clipped_unit(x: Float[Tensor, "*axes"], dim: int, slope: float) -> Float[Tensor, "*axes"]:
    """Compute y / |y| along `dim`, where y = LeakyReLU(x); 0 for a zero vector. A slope of 1 clips nothing.

    >>> clipped_unit(torch.tensor([3.0, -4.0]), 0, 1.0)
    tensor([ 0.6000, -0.8000])
    """
    return _ClippedUnit.apply(x, dim, slope)  # type: ignore[no-untyped-call]


def squared_norm(
    weights: Float[Tensor, "C W I R"], gram: Float[Tensor, "*axes K K"], pattern: str
) -> Float[Tensor, "*rest"]:
    """Compute a^T G a for weights a along the last axis of `pattern`, the einsum axes of symmetric matrices G.

    >>> squared_norm(torch.ones(1, 2, 1, 1), torch.tensor([[[3.0, 1.0], [1.0, 2.0]]]), "cvw").item()
    7.0
    """
    return _SquaredNorm.apply(weights, gram, pattern)  # type: ignore[no-untyped-call]


def projected_difference(
    weights: Float[Tensor, "N Q K"],
    context: Float[Tensor, "N K D"],
    queries: Float[Tensor, "#N Q D"],
    weight: Float[Tensor, "S D"],
    bias: Float[Tensor, " S"],
) -> Float[Tensor, "N Q S"]:
    """Compute W (x - y)^2 + b for each query y and the weighted sum x of its context, which is not stored.

    >>> weights, context = torch.tensor([[[0.5, 0.5]]]), torch.tensor([[[5.0], [7.0]]])
    >>> projected_difference(weights, context, torch.tensor([[[2.0]]]), torch.ones(1, 1), torch.ones(1)).item()
    17.0
    """
    if _is_plain_cpu(weights):
        return _ProjectedDifference.apply(weights, context, queries, weight, bias)  # type: ignore[no-untyped-call]
    return F.linear((weights @ context - queries).square(), weight, bias)


def gated(
    queries: Float[Tensor, "*#axes D"], gate: Float[Tensor, "*axes D"], update: Float[Tensor, "*axes D"]
) -> Float[Tensor, "*axes D"]:
    """Compute g q + (1 - g) tanh(update) with g = sigmoid(gate).

    >>> gated(torch.tensor([[1.0]]), torch.zeros(1, 1), torch.zeros(1, 1))
    tensor([[0.5000]])
    """
    if _is_plain_cpu(gate):
        return _Gated.apply(queries.expand_as(gate), gate, update)  # type: ignore[no-untyped-call]
    new = update.tanh()
    return new + gate.sigmoid() * (queries - new)


def linear_cross_entropy(
    states: Float[Tensor, "N D"], weight: Float[Tensor, "V D"], bias: Float[Tensor, " V"], labels: Int[Tensor, " N"]
) -> Float[Tensor, ""]:
    """Compute the sum of -log softmax(W s + b)[label] over states, of whose logits some at a time are in memory.

    >>> linear_cross_entropy(torch.ones(3, 1), torch.zeros(2, 1), torch.zeros(2), torch.tensor([0, 1, 1])) / 3
    tensor(0.6931)
    """
    if _is_plain_cpu(states):
        return _LinearCrossEntropy.apply(states, weight, bias, labels)  # type: ignore[no-untyped-call]
    return F.cross_entropy(F.linear(states, weight, bias), labels, reduction="sum")


def _is_plain_cpu(x: Tensor) -> bool:
    """Return whether computing in cache-sized parts pays, and all is of one dtype."""
    return x.device.type == "cpu" and not torch.is_autocast_enabled("cpu")


class _ClippedUnit(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, slope: float) -> Tensor:
        clipped = F.leaky_relu(x, slope)
        # In float64: some processors' float32 root is a bit off, and what stands alone would not be 1 (BFAN needs it).
        norm = (clipped * clipped).sum(dim, keepdim=True).double().sqrt_().to(x.dtype)
        norm.masked_fill_(norm == 0, 1)
        result = clipped.div_(norm)
        ctx.save_for_backward(result, norm)
        ctx.dim, ctx.slope = dim, slope
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        result, norm = ctx.saved_tensors
        along = (gradient * result).sum(ctx.dim, keepdim=True)
        change = torch.addcmul(gradient, result, along, value=-1).div_(norm)
        if ctx.slope != 1:
            torch.ops.aten.leaky_relu_backward.grad_input(change, result, ctx.slope, True, grad_input=change)
        return change, None, None


class _SquaredNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weights: Tensor, gram: Tensor, pattern: str) -> Tensor:
        attending = "cwir".replace(pattern[-1], pattern[-2])
        through = torch.einsum(f"{attending},{pattern}->cwir", weights, gram)
        ctx.save_for_backward(weights, through)
        ctx.pattern, ctx.attending, ctx.dim = pattern, attending, "cwir".index(pattern[-1])
        return (weights * through).sum(ctx.dim)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        weights, through = ctx.saved_tensors
        gradient = gradient.unsqueeze(ctx.dim)
        of_gram = torch.einsum(f"{ctx.attending},cwir->{ctx.pattern}", weights * gradient, weights)
        return through * (2 * gradient), of_gram, None


class _ProjectedDifference(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weights: Tensor, context: Tensor, queries: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(weights, context, queries, weight)
        result, transposed = weights.new_empty(*weights.shape[:2], len(weight)), weight.T.contiguous()
        for rows, _, differences in _differences(weights, context, queries):
            torch.addmm(bias, differences.square_().flatten(0, 1), transposed, out=result[rows].flatten(0, 1))
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:
        weights, context, queries, weight = ctx.saved_tensors
        of_weights, of_context = torch.empty_like(weights), torch.empty_like(context)
        of_queries, of_weight = torch.zeros_like(queries), torch.zeros_like(weight)
        gradient, twice = gradient.contiguous(), 2 * weight
        for rows, asked, differences in _differences(weights, context, queries):
            flat = gradient[rows].flatten(0, 1)
            changes = (flat @ twice).view_as(differences).mul_(differences)
            torch.bmm(changes, context[rows].transpose(1, 2), out=of_weights[rows])
            torch.bmm(weights[rows].transpose(1, 2), changes, out=of_context[rows])
            of_queries[asked] -= changes.sum_to_size(queries[asked].shape)
            of_weight.addmm_(flat.T, differences.square_().flatten(0, 1))
        return of_weights, of_context, of_queries, of_weight, gradient.sum((0, 1))


def _differences(weights: Tensor, context: Tensor, queries: Tensor) -> Iterator[tuple[slice, slice, Tensor]]:
    """x - y for some of N at a time, after their rows and those of their queries, or of the one that stands for all."""
    step = max(1, CACHE // context.shape[2] // weights.shape[1])
    for start in range(0, len(weights), step):
        rows = slice(start, start + step)
        asked = rows if len(queries) > 1 else slice(1)
        own = queries[asked].expand(len(weights[rows]), -1, -1)
        yield rows, asked, torch.baddbmm(own, weights[rows], context[rows], beta=-1)


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, queries: Tensor, gate: Tensor, update: Tensor) -> Tensor:
        ctx.save_for_backward(queries, gate, update)
        result = torch.empty_like(queries, memory_format=torch.contiguous_format)
        for kept, *parts in _parts(result, queries, gate, update):
            torch.lerp(parts[2].tanh(), parts[0], parts[1].sigmoid(), out=kept)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        changes = [torch.empty_like(gradient, memory_format=torch.contiguous_format) for _ in range(3)]
        for change, query, gate, update, of_query, of_gate, of_update in _parts(gradient, *ctx.saved_tensors, *changes):
            gate, update = gate.sigmoid(), update.tanh()
            torch.mul(change, gate, out=of_query)
            torch.mul(change - of_query, (update * update).neg_().add_(1), out=of_update)
            torch.mul((query - update).mul_(of_query), gate.neg_().add_(1), out=of_gate)
        return changes[0], changes[1], changes[2]


class _LinearCrossEntropy(torch.autograd.Function):
    """Gradients are computed with the loss, while its logits are at hand."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, bias: Tensor, labels: Tensor) -> Tensor:
        loss, of_states = states.new_zeros(()), torch.empty_like(states)
        of_weight, of_bias = torch.zeros_like(weight), torch.zeros_like(bias)
        for some, own, of_some in zip(*(one.split(ROWS) for one in (states, labels, of_states)), strict=True):
            likely, place = F.linear(some, weight, bias).log_softmax(1), own.unsqueeze(1)
            loss -= likely.gather(1, place).sum()
            change = likely.exp_().scatter_add_(1, place, likely.new_full(place.shape, -1))
            torch.mm(change, weight, out=of_some)
            of_weight.addmm_(change.T, some)
            of_bias += change.sum(0)
        ctx.save_for_backward(of_states, of_weight, of_bias)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return *(one * gradient for one in ctx.saved_tensors), None


def _parts(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Cut all tensors alike, along the longest axis but the last."""
    shape = tensors[0].shape
    axis = max(range(len(shape) - 1), key=shape.__getitem__)
    step = max(1, CACHE * shape[axis] // shape.numel() // len(tensors))
    return zip(*(tensor.split(step, axis) for tensor in tensors), strict=True)
