"""Normalisation that survives zero vectors."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

EPSILON = 1e-8


def l2_normalise(x: Float[Tensor, "*axes"], dim: int = -1) -> Float[Tensor, "*axes"]:
    """x / (|x| + 1e-8) along `dim`; a zero vector stays zero, and its gradient finite.

    >>> import torch
    >>> l2_normalise(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """
    return x / (safe_norm(x, dim) + EPSILON)


def l1_normalise(x: Float[Tensor, "*axes"], dim: int = -1) -> Float[Tensor, "*axes"]:
    """x / (sum |x| + 1e-8) along `dim`."""
    return x / (x.abs().sum(dim, keepdim=True) + EPSILON)


def safe_norm(x: Float[Tensor, "*axes"], dim: int = -1) -> Float[Tensor, "*kept"]:
    """|x| along `dim` (kept as 1), but 1 for a zero vector, where the square root has no gradient."""
    square = (x * x).sum(dim, keepdim=True)
    return square.masked_fill(square == 0, 1).sqrt()


def clipped_unit(x: Float[Tensor, "*axes"], dim: int, slope: float) -> Float[Tensor, "*axes"]:
    """y / |y| along `dim`, where y = LeakyReLU(x); a zero vector stays zero. A slope of 1 clips nothing.

    >>> import torch
    >>> clipped_unit(torch.tensor([3.0, -4.0]), 0, 1.0)
    tensor([ 0.6000, -0.8000])
    """
    clipped = x if slope == 1 else F.leaky_relu(x, slope)
    square = (clipped * clipped).sum(dim, keepdim=True)
    # In float64: on some processors the float32 root is a bit off, and a single entry would not be exactly 1 (BFAN).
    return clipped / square.masked_fill(square == 0, 1).double().sqrt().to(x.dtype)
