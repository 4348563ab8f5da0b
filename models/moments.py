"""Mean and variance of a batch."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn


class Moments(nn.Module):
    """Mean and variance of each channel of (items, channels, ...), and how many values each has.

    A module, so that several processes that share a batch can put those of all in its place.
    """

    def forward(
        self, values: Float[Tensor, "items channels ..."]
    ) -> tuple[Float[Tensor, " channels"], Float[Tensor, " channels"], int]:
        axes = [axis for axis in range(values.ndim) if axis != 1]
        variance, mean = torch.var_mean(values, dim=axes, correction=0)
        return mean, variance, values.numel() // values.shape[1]
