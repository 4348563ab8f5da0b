"""BatchNorm of a batch that several processes share: its statistics are those of all of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from aoq.models.sgraf import Moments
from aoq.pipeline.training.processes import Processes

Channels = Float[Tensor, " channels"]


def has_batch_norm(model: nn.Module) -> bool:
    return any(isinstance(layer, _BatchNorm) for layer in model.modules())


@contextmanager
def shared_statistics(model: nn.Module, processes: Processes) -> Iterator[None]:
    """Let the model's statistics of a batch be those of all processes' parts, gradients included."""
    shared: dict[type[nn.Module], Callable[..., Any]] = {_BatchNorm: _normalised, Moments: _moments_of}
    layers = [(one, way) for one in model.modules() for kind, way in shared.items() if isinstance(one, kind)]
    for layer, way in layers:
        layer.forward = partial(way, layer, processes)
    try:
        yield
    finally:
        for layer, _ in layers:
            del layer.forward


def moments(
    values: Float[Tensor, "items channels ..."], processes: Processes
) -> tuple[Channels, Channels, Float[Tensor, ""]]:
    """Mean and variance of each channel over the values of all processes, and how many each has.

        m = sum_p n_p m_p / n        v = sum_p (q_p + n_p (m_p - m)^2) / n

    Process p has n_p values with mean m_p, and q_p is the sum of their squared distances from it. Unlike the mean of
    squares less the square of the mean, that loses no digits.
    """
    axes, size = [axis for axis in range(values.ndim) if axis != 1], values.shape[1]
    own = values.numel() // size
    mean = values.sum(axes) / max(1, own)
    squares = (values - mean.view(-1, *[1] * (values.ndim - 2))).square().sum(axes)
    part = torch.cat([values.new_tensor([own]), mean, squares]).unsqueeze(0)
    counts, means, squares = processes.gather(part, processes.count).split([1, size, size], dim=1)
    count = counts.sum()
    mean = (counts * means).sum(0) / count
    return mean, (squares + counts * (means - mean).square()).sum(0) / count, count


def _moments_of(
    layer: Moments, processes: Processes, values: Float[Tensor, "items channels ..."]
) -> tuple[Channels, Channels, Float[Tensor, ""]]:
    return moments(values, processes)


def _normalised(
    layer: _BatchNorm, processes: Processes, values: Float[Tensor, "items channels ..."]
) -> Float[Tensor, "items channels ..."]:
    """Do what BatchNorm does, which in eval mode needs no statistics of the batch."""
    if not layer.training:
        return type(layer).forward(layer, values)
    mean, variance, count = moments(values.to(torch.promote_types(values.dtype, torch.float32)), processes)
    _update(layer, mean.detach(), variance.detach() * (count / (count - 1)))
    scale = (variance + layer.eps).rsqrt()
    shift = -mean * scale
    if layer.affine:
        scale, shift = scale * layer.weight, shift * layer.weight + layer.bias
    shape = (-1, *[1] * (values.ndim - 2))
    return (values * scale.view(shape) + shift.view(shape)).to(values.dtype)


@torch.no_grad()
def _update(layer: _BatchNorm, mean: Channels, variance: Channels) -> None:
    """Update the running statistics, if the layer keeps them."""
    if layer.num_batches_tracked is None:
        return
    layer.num_batches_tracked.add_(1)
    momentum = 1 / layer.num_batches_tracked if layer.momentum is None else layer.momentum
    for running, now in ((layer.running_mean, mean), (layer.running_var, variance)):
        assert running is not None  # kept with the number of batches
        running.lerp_(now.to(running.dtype), torch.as_tensor(momentum, dtype=running.dtype, device=running.device))
