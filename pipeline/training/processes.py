"""Processes that train one model together: what they gather and add up, and the BatchNorm that they share.

Each process reads, encodes and scores its own part of a batch. All gather the scores and compute the same loss on the
whole batch. A gradient returns the way its number came: a number gathered for further computation receives the sum over
all processes (`gather`); one gathered for the loss, of which each process has a copy, receives only its own process's
gradient (`gather_for_loss`). Last, the parameters' gradients are added up: every process takes the whole batch's step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from aoq.models.base import Code, concatenate
from aoq.models.sgraf import Moments

Channels = Float[Tensor, " channels"]
Values = Float[Tensor, "items channels ..."]


@dataclass(frozen=True)
class Processes:
    """The number of processes and the rank of this one; rank 0 leads: it alone writes and logs."""

    rank: int = 0
    count: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    """Device that this process computes on and sends from."""

    @property
    def leads(self) -> bool:
        return self.rank == 0

    @property
    def are_several(self) -> bool:
        return self.count > 1

    def rows(self, items: int) -> slice:
        """Return the part of this process; parts differ by one item at most."""
        return slice(items * self.rank // self.count, items * (self.rank + 1) // self.count)

    def gather(self, part: Tensor, items: int) -> Tensor:
        """Gather all parts in order, to compute with; the gradients of all processes are added up."""
        whole = self.gather_for_loss(part, items)
        if self.are_several and whole.requires_grad:
            whole.register_hook(self.add_up)
        return whole

    def gather_for_loss(self, part: Tensor, items: int) -> Tensor:
        """Gather all parts in order, for a loss of which each process computes the same copy."""
        if not self.are_several:
            return part
        lengths = np.diff([items * rank // self.count for rank in range(self.count + 1)]).tolist()
        padding = (0, 0) * (part.ndim - 1) + (0, max(lengths) - len(part))
        sent = F.pad(part.detach(), padding).contiguous()
        received = [torch.empty_like(sent) for _ in lengths]
        dist.all_gather([one.view(torch.uint8) for one in received], sent.view(torch.uint8))
        parts = [one[:length] for one, length in zip(received, lengths, strict=True)]
        parts[self.rank] = part  # with its gradient
        return torch.cat(parts)

    def gather_code(self, part: Code, items: int) -> Code:
        """Gather the code of all items, padded to the longest; the context is left out."""
        if not self.are_several:
            return part
        if part.vectors.ndim == 3:
            longest = torch.tensor(part.vectors.shape[1], device=self.device)
            dist.all_reduce(longest, dist.ReduceOp.MAX)
            nothing = part.vectors.new_zeros(0, int(longest), part.vectors.shape[2])
            part = concatenate([part, Code(nothing, pooled=None if part.pooled is None else part.pooled[:0])])
        fields = {"vectors": part.vectors, "mask": part.mask, "pooled": part.pooled}
        return Code(**{name: self.gather(own, items) for name, own in fields.items() if own is not None})

    def add_up(self, numbers: Tensor) -> Tensor:
        if not self.are_several:
            return numbers
        total = numbers.detach().to(self.device, copy=True).contiguous()
        dist.all_reduce(total)
        return total

    def total(self, own: Tensor) -> Tensor:
        """Sum over all processes; the gradient is that of this one's own part."""
        return self.add_up(own) + (own - own.detach()) if self.are_several else own

    def add_up_gradients(self, parameters: Iterable[nn.Parameter], *, counts: bool) -> None:
        """Sum gradients over the processes whose gradients count, in one message; None where none has one."""
        if not self.are_several:
            return
        trained = [one for one in parameters if one.requires_grad]
        own = [one.grad if counts else None for one in trained]
        gradients = [torch.zeros_like(one) if grad is None else grad for one, grad in zip(trained, own, strict=True)]
        is_there = torch.tensor([grad is not None for grad in own]).to(gradients[0])
        # In the widest dtype, in which the sums of narrower ones are as exact.
        sent = torch.cat([*(one.flatten() for one in gradients), is_there])
        *sums, owners = self.add_up(sent).split([*(one.numel() for one in gradients), len(trained)])
        for parameter, total, count in zip(trained, sums, owners.tolist(), strict=True):
            parameter.grad = total.view_as(parameter).to(parameter.dtype) if count else None

    def from_leader(self, content: bytes) -> bytes:
        contents = [content]
        dist.broadcast_object_list(contents, 0, device=self.device)
        return contents[0]

    def check_same(self, settings: Mapping[str, str]) -> None:
        """Refuse to train if any of these differs between one of several processes and the leader."""
        of_each: list[Any] = [None] * self.count
        dist.all_gather_object(of_each, dict(settings))
        for rank, other in enumerate(of_each):
            if others := sorted({name for name, _ in other.items() ^ of_each[0].items()}):
                raise ValueError(
                    f"process {rank} of this training differs from the first in its {others[0]}; give all the same "
                    "code, data and settings."
                )

    def rows_to_leader(self, part: np.ndarray) -> np.ndarray:
        """Collect all parts in order in the leader; the others keep theirs."""
        if not self.are_several:
            return part
        parts: list[Any] | None = [part] * self.count if self.leads else None
        dist.gather_object(part, parts)
        return part if parts is None else np.concatenate(parts)

    def seed(self, *numbers: int) -> None:
        """Seed torch's random numbers by these, so that checkpoints need not keep the state of each process."""
        if self.are_several:
            torch.manual_seed(int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> np.uint64(1)))


ALONE = Processes()


@contextmanager
def shared_statistics(model: nn.Module, processes: Processes) -> Iterator[None]:
    """Let the model compute statistics of a batch over the parts of all processes, gradients included."""
    layers = model.modules() if processes.are_several else ()
    shared: list[nn.Module] = [layer for layer in layers if isinstance(layer, (_BatchNorm, Moments))]
    for layer in shared:
        normalise = partial(_normalise, layer) if isinstance(layer, _BatchNorm) else moments
        layer.forward = partial(normalise, processes)
    try:
        yield
    finally:
        for layer in shared:
            del layer.forward


def moments(processes: Processes, values: Values) -> tuple[Channels, Channels, Float[Tensor, ""]]:
    """Return each channel's mean and variance over the values of all processes, and their number per channel.

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


def _normalise(layer: _BatchNorm, processes: Processes, values: Values) -> Values:
    """Apply BatchNorm; eval mode needs no statistics of the batch."""
    if not layer.training:
        return type(layer).forward(layer, values)
    mean, variance, count = moments(processes, values.to(torch.promote_types(values.dtype, torch.float32)))
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
