"""Learnt numbers that turn similarities into logits."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

Number = float | Float[Tensor, ""]
"""A fixed number, or a learnt one."""


class LearntTemperature(nn.Module):
    """A temperature, and optionally a bias, learnt with the model; a call returns their values.

    The parameter is log(1 / temperature), the logarithm of the scale of the logits. CLIP (section 2.5) starts at a
    temperature of 0.07 and bounds the scale by 100, `max_scale`; SigLIP (section 3.2) starts at log 10 with a bias of
    -10 and has no such bound. Give the parameters to the model's optimiser, without weight decay.

    >>> {name: round(value.item(), 4) for name, value in LearntTemperature(temperature=0.1, bias=-10.0)().items()}
    {'temperature': 0.1, 'bias': -10.0}
    """

    def __init__(self, *, temperature: float = 0.07, bias: float | None = None, max_scale: float = math.inf) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.tensor(-math.log(temperature)))
        self.bias = None if bias is None else nn.Parameter(torch.tensor(bias))
        self.max_scale = max_scale

    def forward(self) -> dict[str, Tensor]:
        with torch.no_grad():  # CLIP clamps the parameter itself: clamping the value alone would stop its gradient
            self.log_scale.clamp_(max=math.log(self.max_scale))
        temperature = {"temperature": (-self.log_scale).exp()}
        return temperature if self.bias is None else temperature | {"bias": self.bias}

    def values(self) -> dict[str, float]:
        """Return the values as numbers.

        >>> LearntTemperature(temperature=1.0).values()
        {'temperature': 1.0}
        """
        return {name: value.item() for name, value in self().items()}
